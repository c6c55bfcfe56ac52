"""Family: XML and HTML."""

import json
from html import escape

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES, WORDS


def _title(draft: Draft) -> str:
    return f"{draft.pick(*WORDS)} {draft.pick('&', 'and', 'or', '<')} {draft.pick(*PRODUCTS)}"


def _xml_to_csv(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('catalog', 'library', 'books')}.xml"
    target = source.replace(".xml", ".csv")
    text = '<?xml version="1.0" encoding="UTF-8"?>\n<catalog>\n'
    numbers = draft.some(range(100, 999), draft.number(7, 12))
    numbers[1], numbers[2] = draft.number(2, 99), draft.number(1000, 1999)
    for index, number in enumerate(numbers):
        title, author = _title(draft), f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}"
        if index in (1, 2, 4):
            title = f"{draft.pick(*WORDS)}{(' &', ' <', '', ',')[index - 1]} {draft.pick(*PRODUCTS)}"
        price = f"{draft.number(5, 60)}.{draft.number(10, 99)}"
        state = draft.pick("in", "in", "out") if index > 4 else "out" if index in (0, 3) else "in"
        fields = [
            f"<title>{escape(title)}</title>",
            f"<author>{author}</author>",
            f"<price currency='EUR'>{price}</price>",
        ]
        text += f'  <book id="{number}" stock="{state}">\n'
        text += "".join(f"    {field}\n" for field in draft.shuffled(fields)) + "  </book>\n"
        if index == 2 or draft.chance(0.3):
            text += f'  <!-- <book id="{number + 5000}" stock="in"><title>{draft.pick(*WORDS)}</title></book> -->\n'
    draft.file(source, text + "</catalog>\n")
    draft.say(
        draft.pick(f"Extract the books from {source} as CSV.", f"I need the books that are in stock from {source}."),
        "Each book element has the attributes id and stock and the child elements title, author and price (in varying "
        "order).",
        f"! Write {target} as CSV with the header id,title,author,price:",
        "! the books whose stock is 'in',",
        "! sorted by id as a number,",
        "! with the text of the elements (character references such as &amp; resolved).",
        "! Books inside comments do not count.",
    )
    draft.form(target, "csv")
    oracle = python("""
        import csv
        import xml.etree.ElementTree as ElementTree
        books = [book for book in ElementTree.parse(@source@).getroot() if book.get("stock") == "in"]
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["id", "title", "author", "price"])
            for book in sorted(books, key=lambda book: int(book.get("id"))):
                writer.writerow([book.get("id"), *(book.findtext(name) for name in ("title", "author", "price"))])
        """)
    draft.solve(oracle, swap(oracle, ' if book.get("stock") == "in"', ""))


def _links(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('index', 'page', 'start')}.html"
    target = f"{root}/{draft.pick('links', 'outgoing', 'anchors')}.tsv"
    hosts = [f"{word}.example" for word in draft.some(WORDS, 3)]
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
    head = f"<head><title>{draft.pick(*CITIES)}</title></head>"
    page = f"<!DOCTYPE html>\n<html>\n  {head}\n  <body>\n{body}  </body>\n</html>\n"
    draft.file(source, page)
    draft.say(
        draft.pick(f"List the external links of {source}.", f"Which other sites does the page {source} link to?"),
        "! External links are the a elements whose href begins with https://.",
        f"! Write {target} with a line for each, in the order of the page (repetitions included):",
        "! the URL, a tab, and the text of the link.",
        "! Resolve character references (&amp; is &) in both;",
        "! in the text, drop tags inside the link,",
        "! and make each run of spaces and line breaks one space, with none at the ends.",
        "! Links in comments do not count.",
        draft.every_line(),
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, 'if self.url.startswith("https://")', "if self.url"))


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
    draft.file(source, json.dumps({"nodes": nodes}, indent=2) + "\n")
    draft.say(
        draft.pick(f"Convert {source} to XML.", f"An old program needs the nodes of {source} as XML."),
        'The file is a JSON object whose key "nodes" has an array of objects with name, zone, note and ports.',
        f"! Write {target}, a well-formed XML document",
        "! with a root element nodes.",
        "! In it there is one node element for each node,",
        "! sorted by name in byte order,",
        "! with the attributes name and zone",
        "! and these children in this order: one note element with the note as its text,",
        "! then one port element for each port,",
        "! in the order of the array,",
        "! with the number as its text.",
        "! There are no other elements, attributes or texts,",
        "! and no white space inside note and port but what belongs to the note.",
    )
    draft.form(target, "xml")
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, 'encoding="unicode")', 'encoding="unicode").replace("&amp;", "&")'))


FAMILY = Family("markup", "Read and write XML, read HTML", (_xml_to_csv, _to_xml, _links), ("python3",))
