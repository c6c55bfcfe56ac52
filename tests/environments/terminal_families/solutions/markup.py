"""Forbidden changes and other solutions of the family `markup`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_xml_to_csv": {
        "Write «target» as CSV with the header id,title,author,price:": [
            swap('writer.writerow(["id", "title", "author", "price"])', "pass"),
            swap("csv.writer(target)", 'csv.writer(target, delimiter=";")'),
        ],
        "the books whose stock is 'in',": [swap(' if book.get("stock") == "in"', ""), swap('== "in"', '!= "in"')],
        "sorted by id as a number,": [swap('int(book.get("id"))', 'book.get("id")')],
        "with the text of the elements": [
            swap("(book.findtext(name) for", "(__import__('html').escape(book.findtext(name), False) for")
        ],
        "Books inside comments do not count.": [
            swap(
                "ElementTree.parse(«repr(source)»).getroot()",
                "ElementTree.fromstring(open(«repr(source)»).read().replace('<!--', '').replace('-->', '').encode())",
            )
        ],
    },
    "_links": {
        "External links are the a elements whose href begins with https://.": [
            swap('self.url.startswith("https://")', "self.url"),
            swap(
                'if tag == "a":',
                'if tag == "img":\n            self.found.append(dict(attributes)["src"] + "\\t\\n")\n        elif tag == "a":',
            ),
        ],
        "Write «target» with a line for each, in the order of the page (repetitions included):": [
            swap("join(links.found)", "join(sorted(links.found))")
        ],
        "the URL, a tab, and the text of the link.": [
            swap('"\\t"', '" "'),
            after("sed -Ei 's/(.*)\\t(.*)/\\2\\t\\1/' «target»"),
        ],
        "Resolve character references (&amp; is &) in both;": [
            swap("append(self.url +", 'append(self.url.replace("&", "&amp;") +'),
            swap("self.text += data", 'self.text += data.replace("&", "&amp;")'),
        ],
        "in the text, drop tags inside the link,": [
            swap(
                '["href"], ""',
                '["href"], ""\n        elif self.text is not None:\n            self.text += "<" + tag + ">"',
            ),
            swap("self.text += data", 'self.text += data if self.get_starttag_text().startswith("<a") else ""'),
        ],
        "and make each run of spaces and line breaks one space, with none at the ends.": [
            swap('" ".join(self.text.split())', 'self.text.strip().replace("\\n", " ")')
        ],
        "Links in comments do not count.": [swap(".read())", '.read().replace("<!--", "").replace("-->", ""))')],
    },
    "_to_xml": {
        "Write «target», a well-formed XML document": [
            swap('encoding="unicode")', 'encoding="unicode").replace("&amp;", "&")'),
            swap("write(text", 'write(\'<?xml version="1.0" encoding="ISO-8859-1"?>\' + text'),
        ],
        "with a root element nodes.": [
            swap('Element("nodes")', 'Element("hosts")'),
            swap("text = ElementTree", "root = root[0]\ntext = ElementTree"),
        ],
        "In it there is one node element for each node,": [
            swap('(root, "node"', '(root, "host"'),
            swap('["nodes"], key', '["nodes"] * 2, key'),
        ],
        "sorted by name in byte order,": [swap('node["name"]):', "0):")],
        "with the attributes name and zone": [
            swap(', zone=node["zone"]', ""),
            swap(', name=node["name"]', ', id=node["name"]'),
        ],
        "and these children in this order: one note element with the note as its text,": [
            swap(
                "text = ElementTree.tostring",
                "for node in root: node[:] = [*node[1:], node[0]]\ntext = ElementTree.tostring",
            ),
            swap('.text = node["note"]', '.text = node["note"].replace("&", "&amp;").replace("<", "&lt;")'),
        ],
        "then one port element for each port,": [
            swap('for port in node["ports"]:', 'for port in [" ".join(map(str, node["ports"]))]:'),
            swap('in node["ports"]:', 'in node["ports"] or [""]:'),
        ],
        "in the order of the array,": [swap('in node["ports"]:', 'in sorted(node["ports"]):')],
        "with the number as its text.": [
            swap("str(port)", 'f"{port:05}"'),
            swap('"port").text = str(port)', '"port", number=str(port))'),
        ],
        "There are no other elements, attributes or texts,": [
            swap("    for port in", '    ElementTree.SubElement(element, "ports")\n    for port in'),
            swap('Element("nodes")', 'Element("nodes", version="1")'),
            swap('Element("nodes")', 'Element("nodes", {"xmlns:more": "urn:more"})'),
        ],
        "and no white space inside note and port": [
            swap('.text = node["note"]', '.text = "\\n" + node["note"] + "\\n"'),
            swap("str(port)", 'f" {port} "'),
        ],
    },
}
HONEST = {
    "_xml_to_csv": [
        swap("csv.writer(target)", "csv.writer(target, lineterminator=chr(10), quoting=csv.QUOTE_ALL)"),
        instead("""python3 - <<'END'
import html, re
text = re.sub("<!--.*?-->", "", open("«source»").read(), flags=re.S)
rows = []
for number, stock, book in re.findall('<book id="(.*?)" stock="(.*?)">(.*?)</book>', text, re.S):
    if stock == "in":
        parts = (re.search(f"<{name}[^>]*>(.*?)<", book)[1] for name in ("title", "author", "price"))
        rows.append([number, *(html.unescape(part) for part in parts)])
with open("«target»", "w") as target:
    print("id,title,author,price", file=target)
    for row in sorted(rows, key=lambda row: int(row[0])):
        print(",".join(f'"{part}"' if "," in part else part for part in row), file=target)
END"""),
    ],
    "_links": [
        instead("""python3 - <<'END'
import html, re
page = re.sub("<!--.*?-->", "", open("«source»").read(), flags=re.S)
with open("«target»", "w") as target:
    for attributes, text in re.findall("<a ([^>]*)>(.*?)</a>", page, re.S):
        url = html.unescape(re.search("href=([\\x27\\x22])(.*?)\\\\1", attributes)[2])
        text = " ".join(html.unescape(re.sub("<[^>]*>", "", text)).split())
        if url.startswith("https://"):
            print(url, text, sep="\\t", file=target)
END""")
    ],
    "_to_xml": [
        swap("text = ElementTree.tostring", 'ElementTree.indent(root, "\\t")\ntext = ElementTree.tostring'),
        swap("write(text", 'write(\'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\\n\' + text'),
        instead("""python3 - <<'END'
import json
from xml.sax.saxutils import escape, quoteattr
with open("«target»", "w") as target:
    print("<nodes>", file=target)
    for node in sorted(json.load(open("«source»"))["nodes"], key=lambda node: node["name"]):
        print(f"<node zone={quoteattr(node['zone'])} name={quoteattr(node['name'])}>", file=target)
        print(f"<note><![CDATA[{node['note']}]]></note>", file=target)
        for port in node["ports"]:
            print(f"<port>{port}</port>", file=target)
        print("</node>", file=target)
    print("</nodes>", file=target, end="")
END"""),
    ],
}
