"""Family: XML and HTML."""

from __future__ import annotations

import json
from html import escape

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES, WORDS

__all__ = ["FAMILY"]

_LINES, _HEADER, _RECORDS = (f"* has the right {what}" for what in ("lines", "header", "records"))
_ORDER = "records of * are in order"
_NODES, _CHILDREN = "nodes are right", "children are right"


def _title(draft: Draft) -> str:
    return f"{draft.pick(*WORDS)} {draft.pick('&', 'and', 'or', '<')} {draft.pick(*PRODUCTS)}"


def _xml_to_csv(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('catalog', 'library', 'books')}.xml"
    target = source.replace(".xml", ".csv")
    rows: list[list[str]] = []
    text = '<?xml version="1.0" encoding="UTF-8"?>\n<catalog>\n'
    numbers = draft.some(range(100, 999), draft.number(7, 12))
    numbers[1], numbers[2] = draft.number(2, 99), draft.number(1000, 1999)
    for number in numbers:
        title, author = _title(draft), f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}"
        if len(rows) in (1, 2, 4):
            title = f"{draft.pick(*WORDS)}{(' &', ' <', '', ',')[len(rows) - 1]} {draft.pick(*PRODUCTS)}"
        price = f"{draft.number(5, 60)}.{draft.number(10, 99)}"
        state = draft.pick("in", "in", "out") if len(rows) > 4 else "out" if len(rows) in (0, 3) else "in"
        fields = [
            f"<title>{escape(title)}</title>",
            f"<author>{author}</author>",
            f"<price currency='EUR'>{price}</price>",
        ]
        text += f'  <book id="{number}" stock="{state}">\n'
        text += "".join(f"    {field}\n" for field in draft.shuffled(fields)) + "  </book>\n"
        if len(rows) == 2 or draft.chance(0.3):
            text += f'  <!-- <book id="{number + 5000}" stock="in"><title>{draft.pick(*WORDS)}</title></book> -->\n'
        rows.append([str(number), title, author, price, state])
    draft.file(source, text + "</catalog>\n", keep=True)
    chosen = sorted((row for row in rows if row[4] == "in"), key=lambda row: int(row[0]))
    expected = [["id", "title", "author", "price"], *(row[:4] for row in chosen)]
    draft.say(
        draft.pick(f"Extract the books from {source} as CSV.", f"I need the books that are in stock from {source}."),
        "Each book element has the attributes id and stock and the child elements title, author and price (in varying "
        "order).",
        draft.require(
            f"Write {target} as CSV with the header id,title,author,price:",
            breach("another header", _HEADER, after=f"sed -i 1s/title/name/ {target}"),
            breach("semicolons", _HEADER, _RECORDS, swap=("csv.writer(target)", 'csv.writer(target, delimiter=";")')),
            breach(
                "one more column",
                _HEADER,
                _RECORDS,
                swap=("csv.writer(target)", "csv.writer(target, lineterminator=',EUR\\n')"),
            ),
            breach("commas that are not quoted", _RECORDS, after=f"sed -i 's/\"//g' {target}"),
            breach(
                "columns exchanged",
                _RECORDS,
                swap=('in ("title", "author", "price"))', 'in ("author", "title", "price"))'),
            ),
        ),
        draft.require(
            "the books whose stock is 'in',",
            breach("all books", _RECORDS, swap=(' if book.get("stock") == "in"', "")),
            breach("the books that are out", _RECORDS, swap=('== "in"', '!= "in"')),
            breach("a book left out", _RECORDS, swap=('int(book.get("id"))):', 'int(book.get("id")))[1:]:')),
            breach("a book twice", _RECORDS, swap=("in sorted(books, key", "in sorted([*books, books[0]], key")),
        ),
        draft.require(
            "sorted by id as a number,",
            breach("sorted by id as text", _ORDER, swap=('int(book.get("id"))', 'book.get("id")')),
            breach("sorted backwards", _ORDER, swap=('int(book.get("id"))', '-int(book.get("id"))')),
            breach("in the order of the file", _ORDER, swap=('int(book.get("id"))', "0")),
        ),
        draft.require(
            "with the text of the elements (character references such as &amp; resolved).",
            breach(
                "references left",
                _RECORDS,
                swap=("(book.findtext(name) for", "(__import__('html').escape(book.findtext(name), False) for"),
            ),
            breach(
                "references dropped",
                _RECORDS,
                swap=("(book.findtext(name) for", "(book.findtext(name).replace('& ', '') for"),
            ),
            breach(
                "attributes of elements too",
                _RECORDS,
                swap=(
                    "(book.findtext(name) for",
                    "(' '.join([book.findtext(name), *book.find(name).attrib.values()]) for",
                ),
            ),
            breach(
                "spaces left out",
                _RECORDS,
                swap=("(book.findtext(name) for", "(book.findtext(name).replace(' ', '') for"),
            ),
        ),
        draft.require(
            "Books inside comments do not count.",
            breach(
                "books inside comments",
                _RECORDS,
                swap=(
                    f"ElementTree.parse({source!r}).getroot()",
                    f"ElementTree.fromstring(open({source!r}).read().replace('<!--', '').replace('-->', '').encode())",
                ),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
        import csv
        import xml.etree.ElementTree as ElementTree
        books = [book for book in ElementTree.parse(@source@).getroot() if book.get("stock") == "in"]
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["id", "title", "author", "price"])
            for book in sorted(books, key=lambda book: int(book.get("id"))):
                writer.writerow([book.get("id"), *(book.findtext(name) for name in ("title", "author", "price"))])
        """,
        source=source,
        target=target,
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, ' if book.get("stock") == "in"', ""), str(expected))


def _links(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('index', 'page', 'start')}.html"
    target = f"{root}/{draft.pick('links', 'outgoing', 'anchors')}.tsv"
    hosts = [f"{word}.example" for word in draft.some(WORDS, 3)]
    lines: list[str] = []
    body = ""
    again = ("", "")
    for number in range(draft.number(9, 15)):
        query = f"?a={draft.number(1, 9)}&b={draft.pick(*SERVICES)}" if number == 1 or draft.chance(0.4) else ""
        outside = number < 4 or (number > 5 and draft.chance(0.5))
        url = (
            f"https://{draft.pick(*hosts)}/{draft.pick(*SERVICES)}{query}"
            if outside
            else f"/{draft.pick(*SERVICES)}{query}"
        )
        label = _title(draft) if number != 1 else f"{draft.pick(*WORDS)} & {draft.pick(*PRODUCTS)}"
        if number == 0:
            again = (url, label)
        elif number == 2:
            url, label = again
        elif number in (4, 5):
            url = (f"http://{hosts[0]}/{draft.pick(*SERVICES)}", f"/go?to=https://{hosts[1]}/")[number - 4]
        quote = draft.pick('"', "'")
        attributes = draft.shuffled([f"href={quote}{escape(url, quote=False)}{quote}", f'class="{draft.pick(*WORDS)}"'])
        shown = escape(label).replace(" ", "\n      " if number == 1 else draft.pick(" ", "\n      "), 1)
        if number in (0, 2) or draft.chance(0.3):
            shown = f"<b>{shown}</b>"
        if number == 3:
            shown = f" {shown}\n    "
        body += f"    <{draft.pick('p', 'li')}>{draft.prose(3)} <a {' '.join(attributes)}>{shown}</a>\n"
        if number == 1:
            body += f'    <!-- <a href="https://{hosts[0]}/hidden">hidden</a> -->\n    <img src="https://{hosts[0]}/x.png">\n'
        if outside:
            lines.append(f"{url}\t{label}\n")
    head = f"<head><title>{draft.pick(*CITIES)}</title></head>"
    page = f"<!DOCTYPE html>\n<html>\n  {head}\n  <body>\n{body}  </body>\n</html>\n"
    draft.file(source, page, keep=True)
    draft.say(
        draft.pick(f"List the external links of {source}.", f"Which other sites does the page {source} link to?"),
        draft.require(
            "External links are the a elements whose href begins with https://.",
            breach("all links", _LINES, swap=('self.url.startswith("https://")', "self.url")),
            breach("http:// too", _LINES, swap=('self.url.startswith("https://")', 'self.url.startswith("http")')),
            breach(
                "https:// anywhere in it", _LINES, swap=('self.url.startswith("https://")', '"https://" in self.url')
            ),
            breach("images too", _LINES, after=f"printf 'https://{hosts[0]}/x.png\\timage\\n' >> {target}"),
            breach(
                "internal links alone", _LINES, swap=('self.url.startswith("https://")', 'self.url.startswith("/")')
            ),
        ),
        draft.require(
            f"Write {target} with a line for each, in the order of the page (repetitions included):",
            breach("links backwards", "lines of * are in order", after=f"tac {target} > ~/x && mv ~/x {target}"),
            breach("the first link last", "lines of * are in order", after=f"sed -i '1{{h;d}};${{G}}' {target}"),
            breach("each link once", _LINES, after=f"awk '!seen[$0]++' {target} > ~/x && mv ~/x {target}"),
            breach("the last link left out", _LINES, after=f"sed -i '$d' {target}"),
            breach("a heading", _LINES, after=f"sed -i '1i URL\\ttext' {target}"),
        ),
        draft.require(
            "the URL, a tab, and the text of the link.",
            breach("a space in place of the tab", _LINES, swap=('"\\t"', '" "')),
            breach("the text first", _LINES, after=f"sed -Ei 's/(.*)\\t(.*)/\\2\\t\\1/' {target}"),
            breach("the URL alone", _LINES, after=f"sed -i 's/\\t.*//' {target}"),
            breach("the host alone", _LINES, after=f"sed -Ei 's,(https://[^/]*)[^\\t]*,\\1,' {target}"),
        ),
        draft.require(
            "Resolve character references (&amp; is &) in both;",
            breach(
                "references left in URLs", _LINES, swap=("append(self.url +", 'append(self.url.replace("&", "&amp;") +')
            ),
            breach(
                "references left in texts",
                _LINES,
                swap=("self.text += data", 'self.text += data.replace("&", "&amp;")'),
            ),
            breach("references dropped", _LINES, after=f"sed -i 's/&//g' {target}"),
        ),
        draft.require(
            "in the text, drop tags inside the link,",
            breach(
                "tags left",
                _LINES,
                swap=(
                    '["href"], ""',
                    '["href"], ""\n        elif self.text is not None:\n            self.text += "<" + tag + ">"',
                ),
            ),
            breach(
                "what is in tags dropped too",
                _LINES,
                swap=("self.text += data", 'self.text += data if self.get_starttag_text().startswith("<a") else ""'),
            ),
        ),
        draft.require(
            "and make each run of spaces and line breaks one space, with none at the ends.",
            breach(
                "line breaks dropped",
                _LINES,
                swap=('" ".join(self.text.split())', 'self.text.strip().replace("\\n", "")'),
            ),
            breach(
                "runs as they are",
                _LINES,
                swap=('" ".join(self.text.split())', 'self.text.strip().replace("\\n", " ")'),
            ),
            breach(
                "spaces at the ends",
                _LINES,
                swap=('" ".join(self.text.split())', '__import__("re").sub("[ \\n]+", " ", self.text)'),
            ),
            breach("no spaces at all", _LINES, swap=('" ".join(self.text.split())', '"".join(self.text.split())')),
        ),
        draft.require(
            "Links in comments do not count.",
            breach("links in comments", _LINES, swap=(".read())", '.read().replace("<!--", "").replace("-->", ""))')),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(lines))
    oracle = python(
        """
        from html.parser import HTMLParser
        class Links(HTMLParser):
            found, text, url = [], None, ""
            def handle_starttag(self, tag, attributes):
                if tag == "a":
                    self.url, self.text = dict(attributes)["href"], ""
            def handle_data(self, data):
                if self.text is not None:
                    self.text += data
            def handle_endtag(self, tag):
                if tag == "a":
                    if self.url.startswith("https://"):
                        self.found.append(self.url + "\\t" + " ".join(self.text.split()) + "\\n")
                    self.text = None
        links = Links()
        links.feed(open(@source@).read())
        open(@target@, "w").write("".join(links.found))
        """,
        source=source,
        target=target,
    )
    draft.honest(
        "by regular expressions",
        instead=python(
            """
            import html, re
            page = re.sub("<!--.*?-->", "", open(@source@).read(), flags=re.S)
            with open(@target@, "w") as target:
                for attributes, text in re.findall("<a ([^>]*)>(.*?)</a>", page, re.S):
                    url = html.unescape(re.search("href=(['\\"])(.*?)\\\\1", attributes)[2])
                    text = " ".join(html.unescape(re.sub("<[^>]*>", "", text)).split())
                    if url.startswith("https://"):
                        print(url, text, sep="\\t", file=target)
            """,
            source=source,
            target=target,
        ),
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, 'if self.url.startswith("https://")', "if self.url"), "".join(lines))


def _to_xml(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('hosts', 'nodes', 'cluster')}.json"
    target = source.replace(".json", ".xml")
    nodes = [
        {
            "name": f"{service}-{draft.number(1, 99)}",
            "zone": draft.pick("a", "b", "c"),
            "note": f"{draft.pick(*WORDS)} {draft.pick('&', '<', '>', chr(34))} {draft.pick(*WORDS)}",
            "ports": [draft.number(1, 9999) for _ in range(draft.number(0, 3))],
        }
        for service in draft.some(SERVICES, draft.number(4, 8))
    ]
    nodes[0] |= {"note": f"{draft.pick(*WORDS)} & {draft.pick(*WORDS)}", "ports": []}
    nodes[1]["ports"] = [draft.number(5000, 9999), draft.number(1, 4999)]
    if nodes == sorted(nodes, key=lambda node: str(node["name"])):
        nodes.reverse()
    draft.file(source, json.dumps({"nodes": nodes}, indent=2) + "\n", keep=True)
    expected = [[n["name"], n["zone"], n["note"], n["ports"]] for n in sorted(nodes, key=lambda n: str(n["name"]))]
    draft.say(
        draft.pick(f"Convert {source} to XML.", f"An old program needs the nodes of {source} as XML."),
        'The file is a JSON object whose key "nodes" has an array of objects with name, zone, note and ports.',
        draft.require(
            f"Write {target}, a well-formed XML document in UTF-8",
            breach(
                "no references",
                "file is xml",
                _NODES,
                _CHILDREN,
                "there is no other text",
                swap=('encoding="unicode")', 'encoding="unicode").replace("&amp;", "&")'),
            ),
            breach(
                "in another encoding",
                "file is in utf 8",
                swap=('"w").write(text', '"w", encoding="utf-16").write(text'),
            ),
            breach(
                "another encoding declared",
                "file is in utf 8",
                swap=("write(text", 'write(\'<?xml version="1.0" encoding="ISO-8859-1"?>\' + text'),
            ),
            breach(
                "two documents",
                "file is xml",
                _NODES,
                _CHILDREN,
                "there is no other text",
                swap=("write(text", "write(text + text"),
            ),
        ),
        draft.require(
            "with a root element nodes.",
            breach("another root element", "file is xml", swap=('Element("nodes")', 'Element("hosts")')),
            breach("a root element in capitals", "file is xml", swap=('Element("nodes")', 'Element("NODES")')),
        ),
        draft.require(
            "In it there is one node element for each node,",
            breach("elements of another name", _NODES, swap=('(root, "node"', '(root, "host"')),
            breach("a node left out", _NODES, _CHILDREN, swap=('node["name"]):', 'node["name"])[1:]:')),
            breach("a node twice", _NODES, _CHILDREN, swap=('["nodes"], key', '["nodes"] * 2, key')),
            breach(
                "nodes without ports left out",
                _NODES,
                _CHILDREN,
                swap=("    element = ", '    if not node["ports"]: continue\n    element = '),
            ),
        ),
        draft.require(
            "sorted by name in byte order,",
            breach("in the order of the file", _NODES, _CHILDREN, swap=('node["name"]):', "0):")),
            breach("sorted backwards", _NODES, _CHILDREN, swap=('node["name"]):', 'node["name"], reverse=True):')),
        ),
        draft.require(
            "with the attributes name and zone",
            breach("no zone", _NODES, swap=(', zone=node["zone"]', "")),
            breach("zones in capitals", _NODES, swap=('zone=node["zone"]', 'zone=node["zone"].upper()')),
            breach("another attribute for the name", _NODES, swap=(', name=node["name"]', ', id=node["name"]')),
            breach(
                "elements in place of attributes",
                _NODES,
                _CHILDREN,
                swap=(
                    ', name=node["name"], zone=node["zone"])',
                    ')\n    ElementTree.SubElement(element, "name").text = node["name"]',
                ),
            ),
        ),
        draft.require(
            "and these children in this order: one note element with the note as its text,",
            breach(
                "notes last",
                _CHILDREN,
                swap=(
                    "text = ElementTree.tostring",
                    "for node in root: node[:] = [*node[1:], node[0]]\ntext = ElementTree.tostring",
                ),
            ),
            breach(
                "references of references",
                _CHILDREN,
                swap=('.text = node["note"]', '.text = node["note"].replace("&", "&amp;").replace("<", "&lt;")'),
            ),
            breach(
                "signs dropped from notes",
                _CHILDREN,
                swap=('.text = node["note"]', '.text = node["note"].replace("& ", "")'),
            ),
            breach(
                "the note as an attribute",
                _CHILDREN,
                swap=('"note").text = node["note"]', '"note", text=node["note"])'),
            ),
            breach(
                "no notes", _CHILDREN, swap=('    ElementTree.SubElement(element, "note").text = node["note"]\n', "")
            ),
        ),
        draft.require(
            "then one port element for each port,",
            breach(
                "one element for all ports",
                _CHILDREN,
                swap=('for port in node["ports"]:', 'for port in [" ".join(map(str, node["ports"]))]:'),
            ),
            breach("an element for no port", _CHILDREN, swap=('in node["ports"]:', 'in node["ports"] or [""]:')),
            breach("the first port alone", _CHILDREN, swap=('in node["ports"]:', 'in node["ports"][:1]:')),
            breach("ports of another name", _CHILDREN, swap=('(element, "port")', '(element, "Port")')),
        ),
        draft.require(
            "in the order of the array,",
            breach("ports sorted", _CHILDREN, swap=('in node["ports"]:', 'in sorted(node["ports"]):')),
        ),
        draft.require(
            "with the number as its text.",
            breach("five digits", _CHILDREN, swap=("str(port)", 'f"{port:05}"')),
            breach(
                "the number as an attribute", _CHILDREN, swap=('"port").text = str(port)', '"port", number=str(port))')
            ),
        ),
        draft.require(
            "No other elements, attributes or texts",
            breach(
                "one more element",
                _NODES,
                _CHILDREN,
                swap=(
                    "text = ElementTree.tostring",
                    'ElementTree.SubElement(root, "end")\ntext = ElementTree.tostring',
                ),
            ),
            breach(
                "one more child",
                _CHILDREN,
                swap=("    for port in", '    ElementTree.SubElement(element, "ports")\n    for port in'),
            ),
            breach("one more attribute", _NODES, swap=('zone=node["zone"])', 'zone=node["zone"], id="1")')),
            breach(
                "an attribute of the root", "file is xml", swap=('Element("nodes")', 'Element("nodes", version="1")')
            ),
            breach("an attribute of notes", _CHILDREN, swap=('(element, "note")', '(element, "note", lang="en")')),
            breach(
                "text between elements",
                "there is no other text",
                swap=("text = ElementTree.tostring", 'root[0].tail = "next"\ntext = ElementTree.tostring'),
            ),
            breach(
                "text in the root",
                "there is no other text",
                swap=("text = ElementTree.tostring", 'root.text = "nodes:"\ntext = ElementTree.tostring'),
            ),
        ),
        draft.require(
            "(line breaks and indentation between elements are free; inside note and port there must be none).",
            breach(
                "line breaks inside notes",
                _CHILDREN,
                swap=('.text = node["note"]', '.text = "\\n" + node["note"] + "\\n"'),
            ),
            breach("spaces around numbers", _CHILDREN, swap=("str(port)", 'f" {port} "')),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    reading = f"tree = xml.etree.ElementTree.fromstring(content({target!r}))\n"
    draft.final.test(
        "file is in utf 8",
        f"text = content({target!r}).decode('utf-8').lstrip(chr(0xfeff))\n"
        "head = text.partition('?>')[0].lower() if text.startswith('<?xml') else ''\n"
        "assert 'encoding' not in head or 'utf-8' in head",
    )
    draft.final.test("file is xml", reading + "assert tree.tag == 'nodes' and not tree.attrib")
    draft.final.test(
        "nodes are right",
        reading + f"expected = json.loads({json.dumps([[row[0], row[1]] for row in expected])!r})\n"
        "assert [(node.tag, dict(node.attrib)) for node in tree] == [\n"
        "    ('node', {'name': name, 'zone': zone}) for name, zone in expected\n]",
    )
    draft.final.test(
        "children are right",
        reading + f"expected = json.loads({json.dumps([[row[2], row[3]] for row in expected])!r})\n"
        "found = [[(child.tag, child.text, dict(child.attrib), len(child)) for child in node] for node in tree]\n"
        "assert found == [\n"
        "    [('note', note, {}, 0), *(('port', str(port), {}, 0) for port in ports)] for note, ports in expected\n]",
    )
    draft.final.test(
        "there is no other text",
        reading + "loose = [tree.text, *(node.text for node in tree), *(item.tail for item in tree.iter())]\n"
        "assert not ''.join(text or '' for text in loose).strip()",
    )
    oracle = python(
        """
        import json
        import xml.etree.ElementTree as ElementTree
        root = ElementTree.Element("nodes")
        for node in sorted(json.load(open(@source@))["nodes"], key=lambda node: node["name"]):
            element = ElementTree.SubElement(root, "node", name=node["name"], zone=node["zone"])
            ElementTree.SubElement(element, "note").text = node["note"]
            for port in node["ports"]:
                ElementTree.SubElement(element, "port").text = str(port)
        text = ElementTree.tostring(root, encoding="unicode")
        open(@target@, "w").write(text + "\\n")
        """,
        source=source,
        target=target,
    )
    draft.honest(
        "indented", swap=("text = ElementTree.tostring", 'ElementTree.indent(root, "\\t")\ntext = ElementTree.tostring')
    )
    draft.honest(
        "with a declaration", swap=("write(text", 'write(\'<?xml version="1.0" encoding="UTF-8"?>\\n\' + text')
    )
    draft.honest("a byte-order mark", swap=('"w").write', '"w", encoding="utf-8-sig").write'))
    draft.honest(
        "written as text",
        instead=python(
            """
            import json
            from xml.sax.saxutils import escape, quoteattr
            with open(@target@, "w") as target:
                print("<nodes>", file=target)
                for node in sorted(json.load(open(@source@))["nodes"], key=lambda node: node["name"]):
                    print(f"<node zone={quoteattr(node['zone'])} name={quoteattr(node['name'])}>", file=target)
                    print(f"<note><![CDATA[{node['note']}]]></note>", file=target)
                    for port in node["ports"]:
                        print(f"<port>{port}</port>", file=target)
                    print("</node>", file=target)
                print("</nodes>", file=target)
            """,
            source=source,
            target=target,
        ),
    )
    draft.solve(oracle, swap(oracle, 'encoding="unicode")', 'encoding="unicode").replace("&amp;", "&")'), str(expected))


FAMILY = Family("markup", "Read and write XML, read HTML", (_xml_to_csv, _to_xml, _links), ("python3",))
