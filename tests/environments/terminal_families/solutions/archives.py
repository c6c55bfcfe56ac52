"""Forbidden changes and other solutions of the family `archives`."""

from tests.environments.terminal_families.ways import after, instead, swap

_ALTERED = (
    "mkdir ~/copy && cp -pr «root»/«name» ~/copy && cd ~/copy && {}\ntar -czf «packed» «members.replace(root, '.')»"
)

_KEPT = "[path for path in files if not path.endswith('.' + left_out) and not path.startswith(folder + '/')]"

FORBIDDEN = {
    "_pack": {
        "Create the gzip-compressed tar archive «packed».": [swap("tar -czf", "tar -cf")],
        "Its members must be named «name»/...,": [
            swap("tar -czf", "tar -P --transform='s,^,x/../,' -czf"),
            swap("«members»", "-C «root»/«name» --exclude='*.«left_out»' --exclude=./«folder» ."),
        ],
        "Leave out all files whose name ends in .«left_out», wherever they are,": [
            swap(" --exclude='*.«left_out»'", ""),
            swap("--exclude='*.«left_out»'", "--no-wildcards-match-slash --anchored --exclude='«name»/*.«left_out»'"),
        ],
        "and the directory «root»/«name»/«folder» with everything in it.": [
            swap(" --exclude=«name»/«folder»", ""),
            swap("--exclude=«name»/«folder» ", "--exclude='«name»/«folder»/*' "),
        ],
        "All other files must be in the archive once, as they are (content, permissions, owner),": [
            swap("--exclude='*.«left_out»'", "--exclude='*.«left_out»*'"),
            swap("--exclude=«name»/«folder»", "--exclude=«folder»"),
            swap("tar -czf", "tar --owner=root:$(id -u) --group=root:$(id -g) -czf"),
        ],
        "and no further files.": [
            instead(_ALTERED.format("echo more > «name»/more.txt")),
            swap("«members»", "«members» -C /etc hostname"),
            instead("mkdir ~/junk; tar -czf «packed» «members» -C ~ junk"),
        ],
    },
    "_unpack": {
        "Extract the files whose name ends in .«wanted» into «output»": [
            swap("endswith(«repr('.' + wanted)»)", "endswith(«repr('.' + wanted)») and name != «repr(example)»"),
            swap("«output»", "«output».new"),
        ],
        "Drop the leading directory «prefix» from their paths:": [swap('name.split("/", 1)[1]', "name")],
        "Subdirectories below that are kept.": [swap('name.split("/", 1)[1]', "os.path.basename(name)")],
        "There must be nothing else in «output»,": [
            swap("if name.endswith(«repr('.' + wanted)»)", "if True"),
            swap("name.endswith(«repr('.' + wanted)»)", "«repr('.' + wanted)» in name"),
        ],
    },
    "_convert": {
        "Make «target» with the same files: the same member names and contents,": [
            swap("archive.writestr(name, data)", "lines and archive.writestr(name, data)")
        ],
        "each once, and no further files.": [
            swap("archive.writestr(name, data)", "archive.writestr(name, data), archive.writestr(name, data)"),
            swap("    lines = []", "    lines = [archive.writestr('README', '')][1:]"),
        ],
        "Also write «manifest» with one line for each file in the archive:": [
            after("sed -i 1d «manifest»"),
            after('echo "$(wc -c < «source») $(basename «source»)" >> «manifest»'),
        ],
        "its size in bytes, one space, and its member name;": [
            after("sed -i 's/ /\\t/' «manifest»"),
            swap("{len(data)}", "{-(-len(data) // 512)}"),
        ],
        "sorted by member name in byte order (LC_ALL=C).": [
            swap("sorted(source.getnames())", "sorted(source.getnames(), reverse=True)"),
            after("LC_ALL=C sort -n -o «manifest» «manifest»"),
        ],
    },
}
HONEST = {
    "_pack": [
        swap("--exclude=«name»/«folder» «name»", "--exclude=./«name»/«folder» ./«name»"),
        swap("tar -czf", "tar --format=pax --sort=name --mtime=@0 -czf"),
        instead(f"""python3 - <<'END'
import os, tarfile
with tarfile.open("«packed»", "w:gz") as archive:
    for name in «{_KEPT}»:
        archive.add(os.path.join("«root»/«name»", name), "«name»/" + name)
END"""),
    ],
    "_unpack": [
        swap("import os,", "import os; os.umask(0o077); import"),
        instead("""mkdir ~/all && cd ~/all && python3 -c 'import shutil; shutil.unpack_archive("«packed»")'
cd «prefix» && find . -type f -name '*.«wanted»' | while read -r file; do
  mkdir -p "«output»/$(dirname "$file")" && cp "$file" "«output»/$file"
done"""),
    ],
    "_convert": [
        swap("ZIP_DEFLATED", "ZIP_STORED"),
        swap(
            "open(«repr(manifest)»",
            "import shutil; source.extractall('all'); shutil.make_archive(«repr(target[:-4])», 'zip', 'all'); open(«repr(manifest)»",
        ),
        instead("""mkdir ~/all && tar -xf «source» -C ~/all && cd ~/all && python3 - <<'END'
import pathlib, zipfile
with zipfile.ZipFile("«target»", "w") as archive:
    for path in pathlib.Path().rglob("*"):
        archive.write(path)
END
find . -type f -printf '%s %P\\n' | LC_ALL=C sort -k 2 > «manifest»"""),
    ],
}
