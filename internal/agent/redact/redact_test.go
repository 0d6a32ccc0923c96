package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"

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
		{"the longest of several that begin alike", []string{"abc", "abcdef"}, "abcdef abcd", "[secret] [secret]d"},
		{"overlapping values", []string{"abcdef", "defghi"}, "xabcdefghix", "x[secret]x"},
		{"touching values", []string{"abcdef", "ghijkl"}, "xabcdefghijklx", "x[secret]x"},
		{"a value within a value", []string{"abcdefgh", "cde"}, "abcdefgh", "[secret]"},
		{"three bytes", []string{"xyz"}, "wxyz", "w[secret]"},
		{"two bytes are ordinary text", []string{"xy"}, "wxyz", "wxyz"},
		{"truth values are ordinary text", []string{"true", "false", "null"}, "true false null", "true false null"},
		{"white space is ordinary text", []string{"    "}, "a    b", "a    b"},
		{"a value that repeats itself", []string{"aaaa"}, "aaaaaaa!", "[secret]!"},
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
	const text = "one hunter22 two hunter22hunter22 hunter2x hunt\nabcdefghi hun"
	redactor := redact.New("hunter22", "abcdef", "defghi")
	want := redactor.String(text)
	for size := 1; size <= len(text); size++ {
		g := NewWithT(t)
		var out bytes.Buffer
		writer := redactor.Writer(&out)
		for start := 0; start < len(text); start += size {
			_, err := writer.Write([]byte(text[start:min(start+size, len(text))]))
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(writer.Close()).To(Succeed())
		g.Expect(strings.ReplaceAll(out.String(), redact.Mask+redact.Mask, redact.Mask)).To(Equal(want), "chunks of %d bytes", size)
	}
}

func TestWriterHoldsBackOnlyWhatMayBeAValue(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	writer := redact.New("hunter22").Writer(&out)
	for _, chunk := range []string{"a whole line\n", "and the beginning of hunt"} {
		_, err := writer.Write([]byte(chunk))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(out.String()).To(Equal("a whole line\nand the beginning of "))
}

func TestWriterUsesValuesAddedLater(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	redactor := redact.New()
	writer := redactor.Writer(&out)
	redactor.Add("hunter22")
	_, err := writer.Write([]byte("hunter22\n"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out.String()).To(Equal("[secret]\n"))
}

func FuzzWriterNeverLetsAValueThrough(f *testing.F) {
	f.Add("hunter22", "abcdef", "xx hunter22abcdef yy", uint8(3))
	f.Add("aaa", "aaaa", "aaaaaaaaaaaa", uint8(1))
	f.Add("abab", "baba", "ababababab", uint8(2))
	f.Fuzz(func(t *testing.T, first, second, text string, chunk uint8) {
		var out bytes.Buffer
		writer := redact.New(first, second).Writer(&out)
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
		for _, value := range []string{first, second} {
			visible := strings.ReplaceAll(out.String(), redact.Mask, "\x00")
			if len(value) >= redact.MinLength && !strings.Contains(value, "\x00") && strings.Contains(visible, value) &&
				redact.New(value).String(value) == redact.Mask {
				t.Fatalf("value %q is visible in %q", value, out.String())
			}
		}
	})
}
