"""The reader of C headers: what it reads, what it passes over, what it says it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from opferry_server.doctor.headers import Headers, HeadersError


def read(folder: Path, text: str, name: str = "a.h") -> Headers:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Headers([folder])


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ("int f(void);", "int32"),
        ("void f();", "void"),
        ('extern "C" int f(char *s);', "int32 char*"),
        ("const char *f(const char *const s);", "char* char*"),
        ("unsigned long long f(unsigned x, long y, short z);", "uint64 uint32 int64 int16"),
        ("int f(char c, unsigned char d);", "int32 int8 uint8"),
        (
            "int f(const void *p, void **q, int64_t r[], int s[4]);",
            "int32 pointer pointer* int64* int32*",
        ),
        ("int f(const aclTensor *const *list);", "int32 pointer*"),
        ("status f(mode m, mode *n, handle h, handle *i);", "int32 int32 int32* pointer pointer*"),
        ("VISIBLE status f(size_t n) noexcept;", "int32 uint64"),
        ("UNKNOWN_ATTRIBUTE int f(float *x, double y);", "int32 float32* float64"),
        ('DEPRECATED("old; very (old)") int f(int x);', "int32 int32"),
        ('__attribute__((deprecated("a, b"))) int f(int x);', "int32 int32"),
        ("[[nodiscard]] int f(int x = 3);", "int32 int32"),
        ("int f(void (*done)(int, void *), callback other);", "int32 pointer pointer"),
        ("int f(const char *format, ...);", "int32 char* ..."),
        ("int\nf(int x, // one, two\n  /* not this: */ int y);", "int32 int32 int32"),
        ("int f(struct point p, struct point *q, enum mode m);", "int32 struct pointer int32"),
        ("int f(alias a);", "int32 uint32"),
    ],
)
def test_prototypes(tmp_path: Path, declaration: str, words: str) -> None:
    """Types go by width and by how they point, whatever stands around them."""
    known = (
        '#define VISIBLE __attribute__((visibility("default")))\n'
        "#define DEPRECATED(m) __attribute__((deprecated(m)))\n"
        "typedef int status; typedef void *handle; struct aclTensor; typedef uint32_t one;\n"
        "typedef struct aclTensor aclTensor; typedef one two; using alias = two;\n"
        "typedef void (*callback)(void *data);\n"
        "typedef enum mode { A, B = 7, C } mode; struct point { int x; };\n"
    )
    (found,) = read(tmp_path, known + declaration).functions("f")
    assert found.trouble == ""
    assert " ".join(found.words) == words


@pytest.mark.parametrize(
    "text",
    [
        "// int f(int x);",
        "/* int f(int x); */",
        "#define CALL f(1)",
        '#define NAMED "int f(int x);"',
        "inline int g() { return f(1); }",
        "inline void g() { f(1); }",
        "inline int g() { int x = f(1); }",
        "inline int g() { if (f(1)) {} }",
        "template <class T> int f(T x) { return 0; }",
        "static inline int f(double x) { return 0; }",
        "int ff(int x); int f_(int x); int other_f(int x);",
    ],
)
def test_what_is_no_declaration(tmp_path: Path, text: str) -> None:
    """Comments, macros, calls, and C++ overloads that the library does not hold."""
    assert read(tmp_path, text + "\n").functions("f") == []


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("int f(mystery x);", "type mystery is not known"),
        ("int f(std::vector<int> x);", "is not understood"),
        ("typedef int t; int f(t x);", "type t is one of int32, int64"),
        ("typedef loop loop; int f(loop x);", "type loop stands for itself"),
    ],
)
def test_what_is_not_understood_is_said(tmp_path: Path, text: str, trouble: str) -> None:
    """Nothing is guessed: an unknown type, a template, two typedefs that contradict."""
    (tmp_path / "other.h").write_text("typedef int64_t t;")
    (found,) = read(tmp_path, text).functions("f")
    assert found.words == ()
    assert trouble in found.trouble


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("#define X 0x10U", 16),
        ("#define X (1 << 4) // five bits", 16),
        ("#define Y 3\n#define X (Y | 0x8)", 11),
        ("#define X \\\n  7", 7),
        ("enum { A, B, X };", 2),
        ("typedef enum e { A = 5, X, } e;", 6),
        ("enum e : uint8_t { A = -3, X };", -2),
        ("enum { A = 1, X = A + 1 };", 2),
        ("static const int32_t X = 107000; // text", 107000),
        ("constexpr unsigned long X = 1UL << 40;", 1 << 40),
        ("#define X ((uint32_t)3)", 3),
        ("#define X 1.5", None),
        ("#define X sizeof(int)", None),
        ("#define X X", None),
        ("#define X (1 << 100000)", None),
    ],
)
def test_constants(tmp_path: Path, text: str, value: int | None) -> None:
    """Macros, enumerators and consts have their values; what is no sum of integers has none."""
    (found,) = read(tmp_path, text + "\n").constants("X")
    assert found.value == value


def test_pointer_types_come_after_declarations(tmp_path: Path) -> None:
    """`typedef int (*_f)(int)` is a copy of a prototype, and told apart."""
    headers = read(tmp_path, "typedef int (*_f)(int x);\nlong f(int x);\ntypedef int (*_g)(void);")
    assert [(item.is_pointer_type, item.words) for item in headers.functions("f")] == [
        (False, ("int64", "int32")),
        (True, ("int32", "int32")),
    ]
    assert [item.is_pointer_type for item in headers.functions("g")] == [True]


def test_links_are_followed_once(tmp_path: Path) -> None:
    """CANN's include folders are links, to folders and to files, and may lead in circles."""
    real, include = tmp_path / "real", tmp_path / "include"
    include.mkdir()
    read(real / "sub", "int f(int x);")
    (include / "folder").symlink_to(real)
    (include / "again").symlink_to(real)
    (include / "file.h").symlink_to(real / "sub" / "a.h")
    (real / "circle").symlink_to(real)
    (include / "dangling.h").symlink_to(real / "nothing")
    assert len(Headers([include]).functions("f")) == 1
    assert Headers([include]).count == 1


def test_a_header_in_another_encoding_is_read(tmp_path: Path) -> None:
    """Comments may hold anything."""
    (tmp_path / "a.h").write_bytes(b"/* \xff\xfe\xc3 */ int f(int x);\r\n")
    assert Headers([tmp_path]).functions("f")[0].words == ("int32", "int32")


def test_no_headers_are_an_error(tmp_path: Path) -> None:
    """A folder that is none, or holds none, is not the same as headers that declare nothing."""
    with pytest.raises(HeadersError, match="is no folder"):
        Headers([tmp_path / "nothing"])
    with pytest.raises(HeadersError, match=r"no header \(\*\.h\) under"):
        Headers([tmp_path])
