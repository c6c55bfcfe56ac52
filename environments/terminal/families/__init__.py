"""The families of generated terminal tasks, in the order in which the documentation shows them."""

from __future__ import annotations

from . import (
    archives,
    checksums,
    config_files,
    csv_clean,
    csv_join,
    dates,
    debugging,
    dependencies,
    diff_patch,
    disk_usage,
    duplicates,
    encodings,
    file_layout,
    find_files,
    first_steps,
    fixed_width,
    json_query,
    links,
    log_analysis,
    makefiles,
    markup,
    networks,
    numbers,
    permissions,
    processes,
    regex_extract,
    rename,
    reports,
    schedule,
    scripting,
    services,
    set_operations,
    sorting,
    split_files,
    sqlite,
    templates,
    text_encodings,
    text_transform,
    urls,
    version_control,
    versions,
)
from .family import Family

__all__ = ["FAMILIES"]

_MODULES = (
    file_layout, rename, find_files, permissions, links, duplicates, disk_usage, archives, split_files, checksums,
    text_transform, text_encodings, encodings, sorting, set_operations, regex_extract, templates, reports,
    config_files, diff_patch, fixed_width, csv_clean, csv_join, json_query, markup, sqlite, numbers, dates, schedule,
    versions, urls, networks, dependencies, log_analysis, version_control, makefiles, scripting, debugging, processes,
    services, first_steps,
)  # fmt: skip

FAMILIES: tuple[Family, ...] = tuple(module.FAMILY for module in _MODULES)
