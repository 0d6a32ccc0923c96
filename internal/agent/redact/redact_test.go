package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

func TestRedactorHidesKnownValues(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []string
		text   string
		want   string
	}{
		{"no values", nil, "nothing to hide", "nothing to hide"},
		{"empty text", []string{"hunter22"}, "", ""},
		{"one value, twice", []string{"hunter22"}, "a hunter22 b hunter22", "a [secret] b [secret]"},
		{"at both ends", []string{"hunter22"}, "hunter22-hunter22", "[secret]-[secret]"},
		{"the longest of several that begin alike", []string{"hunter22", "hunter2222"}, "hunter2222 hunter223", "[secret] [secret]3"},
		{"the longest short one that is a word", []string{"abc", "abc-def"}, "abc-def abc-defg", "[secret] [secret]-defg"},
		{"overlapping values", []string{"abcdefgh", "efghijkl"}, "xabcdefghijklx", "x[secret]x"},
		{"touching values", []string{"abcdefgh", "ijklmnop"}, "xabcdefghijklmnopx", "x[secret]x"},
		{"a value within a value", []string{"abcdefgh", "cde"}, "abcdefgh", "[secret]"},
		{"three bytes", []string{"xyz"}, "w xyz", "w [secret]"},
		{"two bytes are ordinary text", []string{"xy"}, "w xy", "w xy"},
		{"truth values are ordinary text", []string{"true", "false", "null"}, "true false null", "true false null"},
		{"white space is ordinary text", []string{"    "}, "a    b", "a    b"},
		{"a value that repeats itself", []string{"aaaaaaaa"}, "aaaaaaaaaaaa!", "[secret]!"},
		{"a long line of a certificate", []string{"BEGIN\nMIIDdzCCAl+gAwIBAgIE\nEND"}, "> MIIDdzCCAl+gAwIBAgIE", "> [secret]"},
		{"a value with a newline at its end", []string{"hunter22\n"}, "p=hunter22;", "p=[secret];"},
		{"bytes that are not UTF-8", []string{"\xff\xfe\xfd!"}, "a\xff\xfe\xfd!b", "a[secret]b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			NewWithT(t).Expect(redact.New(test.values...).String(test.text)).To(Equal(test.want))
		})
	}
}

func TestRedactorHidesEncodedValues(t *testing.T) {
	const value = `pa"ss <w&rd>/é\` + "\n" + `second line?`
	inJSON, err := json.Marshal(map[string]string{"password": value})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, text := range map[string]string{
		"JSON":                string(inJSON),
		"Go syntax":           strconv.Quote(value),
		"URL query":           "https://host/?p=" + url.QueryEscape(value) + "&x=1",
		"URL path":            "https://host/" + url.PathEscape(value),
		"base64":              base64.StdEncoding.EncodeToString([]byte(value)),
		"base64 without pad":  base64.RawURLEncoding.EncodeToString([]byte(value)),
		"basic authorization": base64.StdEncoding.EncodeToString([]byte("user:" + value)),
		"within a document":   base64.StdEncoding.EncodeToString([]byte("user: me\npassword: " + value + "\nmore: text")),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			redacted := redact.New(value).String(text)
			g.Expect(redacted).To(ContainSubstring(redact.Mask))
			for _, part := range []string{"rd>", "w&rd", "second", "c2Vjb25k"} {
				g.Expect(redacted).NotTo(ContainSubstring(part))
			}
		})
	}
}

func TestWriterFindsValuesAcrossWrites(t *testing.T) {
	const text = "one hunter22 two hunter22hunter22 hunter2x hunt\nabcdefghijkl la\u00e9test \x1b[31mtest\x1b[0m latest, test\u00e9 hun test"
	redactor := redact.New("hunter22", "abcdefgh", "efghijkl", "test")
	want := redactor.String(text)
	for size := 1; size <= len(text); size++ {
		g := NewWithT(t)
		var out bytes.Buffer
		writer := redactor.Writer(&out)
		for start := 0; start < len(text); start += size {
			g.Expect(writer.Write([]byte(text[start:min(start+size, len(text))]))).Error().NotTo(HaveOccurred())
		}
		g.Expect(writer.Close()).To(Succeed())
		g.Expect(oneMask(out.String())).To(Equal(want), "chunks of %d bytes", size)
	}
}

func TestWriterHoldsBackOnlyWhatMayBeAValue(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	writer := redact.New("hunter22").Writer(&out)
	for _, chunk := range []string{"a whole line\n", "and the beginning of hunt"} {
		g.Expect(writer.Write([]byte(chunk))).Error().NotTo(HaveOccurred())
	}
	g.Expect(out.String()).To(Equal("a whole line\nand the beginning of "))
}

func TestWriterUsesValuesAddedLater(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	redactor := redact.New()
	writer := redactor.Writer(&out)
	redactor.Add("hunter22")
	g.Expect(writer.Write([]byte("hunter22\n"))).Error().NotTo(HaveOccurred())
	g.Expect(out.String()).To(Equal("[secret]\n"))
}

func FuzzWriterNeverLetsAValueThrough(f *testing.F) {
	f.Add("hunter22", "abcdef", "xx hunter22abcdef yy", uint8(3))
	f.Add("aaa", "aaaa", "aaaaaaaaaaaa", uint8(1))
	f.Add("abab", "baba", "ababababab", uint8(2))
	f.Add("test", "p@ss", "latest \x1b[31mtest\x1b[0m p%40ss\\ntest dGVzdA== \u00e9test test\u0301 xp@ss", uint8(1))
	f.Fuzz(func(t *testing.T, first, second, text string, chunk uint8) {
		redactor := redact.New(first, second)
		var out bytes.Buffer
		writer := redactor.Writer(&out)
		for rest := []byte(text); len(rest) > 0; {
			size := min(len(rest), int(chunk)+1)
			if _, err := writer.Write(rest[:size]); err != nil {
				t.Fatal(err)
			}
			rest = rest[size:]
		}
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		if oneMask(out.String()) != oneMask(redactor.String(text)) {
			t.Fatalf("%q, at once %q", out.String(), redactor.String(text))
		}
		for _, value := range []string{first, second} {
			visible := strings.ReplaceAll(out.String(), redact.Mask, "\x00")
			if hiddenAnywhere(value) && !strings.Contains(value, "\x00") && strings.Contains(visible, value) {
				t.Fatalf("value %q is visible in %q", value, out.String())
			}
			if quoted := redact.New(value).String(`"` + value + `"`); hidden(value) && quoted != `"`+redact.Mask+`"` {
				t.Fatalf("value %q is visible in %q", value, quoted)
			}
		}
	})
}

// oneMask replaces adjacent masks by one: a Writer does not know the second value yet when it writes the first Mask.
func oneMask(text string) string {
	for strings.Contains(text, redact.Mask+redact.Mask) {
		text = strings.ReplaceAll(text, redact.Mask+redact.Mask, redact.Mask)
	}
	return text
}

func hidden(value string) bool { return redact.New(value).String(value) == redact.Mask }

func hiddenAnywhere(value string) bool {
	return hidden(value) && utf8.RuneCountInString(strings.TrimSpace(value)) >= 8
}

func TestPartsOfAValueAreOrdinaryText(t *testing.T) {
	const text = "connects to postgres://pulumi, kind: Config, -----BEGIN CERTIFICATE-----"
	redactor := redact.New("postgres://pulumi:hunter22@db.example.com:5432/state", "apiVersion: v1\nkind: Config\n", "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+g\n")
	NewWithT(t).Expect(redactor.String(text)).To(Equal(text))
}
