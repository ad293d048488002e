"""Excel workbooks with the cells of a CSV: by openpyxl, and by hand as Excel writes them."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.utils import get_column_letter

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def _rows(csv_path: Path) -> list[list[str]]:
    with csv_path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream))


def workbook_of(csv_path: Path, path: Path, sheet: str = "Sheet", *before: str) -> Path:
    """Write a CSV's cells, all as text in the cell itself, to a sheet behind those named."""
    book = Workbook(write_only=True)
    for name in before:
        book.create_sheet(name).append(["another", "table"])
    table = book.create_sheet(sheet)
    for texts in _rows(csv_path):
        cells = [WriteOnlyCell(table, text or None) for text in texts]
        for cell in cells:
            if cell.value is not None:
                # a text that starts with = is a text, too
                cell.data_type = "s"
        table.append(cells)
    book.save(path)
    return path


def excel_parts(csv_path: Path) -> dict[str, str]:
    """Return the parts of a workbook with a CSV's cells as Excel writes them: in a shared table."""
    table: dict[str, int] = {}
    rows = []
    for number, texts in enumerate(_rows(csv_path), 1):
        cells = "".join(
            f'<c r="{get_column_letter(column)}{number}" t="s" s="0">'
            f"<v>{table.setdefault(text, len(table))}</v></c>"
            for column, text in enumerate(texts, 1)
            if text
        )
        rows.append(f'<row r="{number}" spans="1:{len(texts)}">{cells}</row>')
    # every other text comes in runs, as one with a bold word does
    strings = [
        f'<si><t xml:space="preserve">{escape(text)}</t></si>'
        if number % 2
        else f'<si><r><t xml:space="preserve">{escape(text[:3])}</t></r>'
        f'<r><rPr><b/></rPr><t xml:space="preserve">{escape(text[3:])}</t></r></si>'
        for text, number in table.items()
    ]
    relations = f"{_OFFICE}/"
    return {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/>'
        f'<Override PartName="/xl/sharedStrings.xml" ContentType="{_TYPE}.sharedStrings+xml"/>'
        "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
        f'Type="{relations}officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
        '<sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{relations}worksheet" Target="worksheets/sheet1.xml"/>'
        f'<Relationship Id="rId2" Type="{relations}sharedStrings" Target="sharedStrings.xml"/>'
        "</Relationships>",
        "xl/sharedStrings.xml": f'<sst xmlns="{_MAIN}">{"".join(strings)}</sst>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{_MAIN}"><dimension ref="A1:E2"/>'
        f"<sheetData>{''.join(rows)}</sheetData></worksheet>",
    }


def pack(path: Path, parts: dict[str, str]) -> Path:
    """Write parts to a workbook."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path
