package redact_test

import (
	"bytes"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

// TestShortValuesAreHiddenAsWholeWords uses texts in which angle brackets mark the values: these have to be hidden, and nothing else.
func TestShortValuesAreHiddenAsWholeWords(t *testing.T) {
	for _, test := range []struct {
		name   string
		value  string
		marked string
	}{
		{"parts of words", "test", "could not find latest version: https://get.example.com/releases/latest; greatest, testing, Test, my_test, test2"},
		{"what settings and programs put around a value", "test", `<test> "<test>" '<test>' (<test>) pass=<test> pass:<test>, --p=<test>; user:<test>@host /<test>/ a-<test>.b #<test>`},
		{"ends of lines", "test", "<test>\n<test>\r\n\t<test>"},
		{"colours", "test", "\x1b[31m<test>\x1b[0m la\x1b[1mtesting \x1b[38;2;255;255;255;48;2;100;100;100m<test>\x1b(B<test>"},
		{"colours whose ESC is printed", "test", `\u001b[31m<test>\u001b[0m \033[1;31m<test> ^[[2K<test>`},
		{"escapes in strings", "test", `"line\n<test>\nline" \t<test> \u003c<test>\u003e \x3d<test>\x20`},
		{"escapes in URLs", "test", "?a%3D<test>%26b%3Dlatest"},
		{"the end of an index is no colour", "test", "[latest [31latest"},
		{"numbers", "123", "<123> 1234 0123 x123 port:<123> 0.<123> -<123> 1,<123>"},
		{"letters with accents", "pass", "épass passé <pass>! «<pass>»"},
		{"a letter with a combining accent", "cafe", "cafe\u0301 <cafe>"},
		{"words of other scripts", "пароль", "парольный <пароль> пароли"},
		{"scripts without spaces", "密码", "我的<密码>是"},
		{"a value whose ends are no letters", "!a.b!", "x<!a.b!>y"},
		{"one end that is no letter", "ab=", "<ab=>c xab=c"},
		{"a value in quotes", `p"ss`, `{"a":"<p\"ss>","b":"xp\"ss"}`},
		{"a value that is not allowed in a URL", "p@ss", "https://u:<p%40ss>@host up%40ss"},
		{"base64", "abc", "data: <YWJj> iYWJjY zYWJj"},
		{"padded base64", "test", "data: <dGVzdA==> <dGVzdA> bGF0ZXN0"},
		{"six bytes in longer base64 and hexadecimal digits", "latest", "dGhl<bGF0ZXN0>IHJlbGVhc2U= ff<6c6174657374>ff latests"},
		{"eight characters are hidden in words, too", "password", "my<password>s"},
		{"eight letters of another script", "парольчик", "мой<парольчик>и"},
		{"with white space around it", " test\n", "a< test\n>b latest <test>"},
		{"bytes that are not UTF-8", "\xff\xfe\xfd", "a<\xff\xfe\xfd>b"},
		{"after a byte that is not UTF-8", "test", "\xc3<test>\xc3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			brackets := strings.NewReplacer("<", "", ">", "")
			text := brackets.Replace(test.marked)
			want := test.marked
			for before, rest, found := strings.Cut(want, "<"); found; before, rest, found = strings.Cut(want, "<") {
				_, after, _ := strings.Cut(rest, ">")
				want = before + redact.Mask + after
			}
			redactor := redact.New(test.value)
			g.Expect(redactor.String(text)).To(Equal(want))
			for size := 1; size <= 8; size++ {
				var out bytes.Buffer
				writer := redactor.Writer(&out)
				for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
					g.Expect(writer.Write([]byte(rest[:min(size, len(rest))]))).Error().NotTo(HaveOccurred())
				}
				g.Expect(writer.Close()).To(Succeed())
				g.Expect(out.String()).To(Equal(want), "writes of %d bytes", size)
			}
		})
	}
}

func TestALongValueIsHiddenInWordsThoughItIsTheSpellingOfAShortOne(t *testing.T) {
	g := NewWithT(t)
	for _, values := range [][]string{{"a\tb cde", `a\tb cde`}, {`a\tb cde`, "a\tb cde"}} {
		g.Expect(redact.New(values...).String(`xa\tb cdex`)).To(Equal("x[secret]x"))
	}
}
