package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

// binary is a secret of 70 bytes, some of them not printable.
var binary = "k3y\x00\xff-" + strings.Repeat("Zq9~", 15) + "\x01end"

// wrap returns the text in lines, each followed by end.
func wrap(text string, columns int, end string) string {
	var wrapped strings.Builder
	for ; text != ""; text = text[min(columns, len(text)):] {
		wrapped.WriteString(text[:min(columns, len(text))] + end)
	}
	return wrapped.String()
}

// apart returns each byte in the format, with the separator between two of them.
func apart(value, format, between string) string {
	var parts []string
	for i := range len(value) {
		parts = append(parts, fmt.Sprintf(format, value[i]))
	}
	return strings.Join(parts, between)
}

// xxd returns the value as the program xxd prints it: bytes in pairs, with the text beside them.
func xxd(value string) string {
	var dump strings.Builder
	for offset := 0; offset < len(value); offset += 16 {
		line := value[offset:min(offset+16, len(value))]
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, strings.ToValidUTF8(line, "."))
		fmt.Fprintf(&dump, "%08x: %-39s  %s\n", offset, wrap(hex.EncodeToString([]byte(line)), 4, " "), text)
	}
	return dump.String()
}

// spellings returns the value as different programs print it.
func spellings(value string) map[string]string {
	digits, std, url := hex.EncodeToString([]byte(value)), base64.StdEncoding.EncodeToString([]byte(value)), base64.URLEncoding.EncodeToString([]byte(value))
	document := base64.StdEncoding.EncodeToString([]byte("user: me\npassword: " + value + "\nmore: text"))
	return map[string]string{
		"hex":                    digits,
		"hex in upper case":      strings.ToUpper(digits),
		"hex in lines":           wrap(digits, 60, "\n"),
		"hex with colons":        apart(value, "%02X", ":"),
		"hex with spaces":        apart(value, "%02x", " "),
		"source code":            apart(value, "0x%02x", ", "),
		"source code, in lines":  wrap(apart(value, "0x%02x", ", "), 72, "\n\t"),
		"escapes":                apart(value, `\x%02x`, ""),
		"xxd":                    xxd(value),
		"hexdump -C":             hex.Dump([]byte(value)),
		"base64 of PEM":          wrap(std, 64, "\n"),
		"base64 of MIME":         wrap(std, 76, "\r\n"),
		"base64 in a string":     wrap(std, 76, `\n`),
		"base64 in a string, CR": wrap(std, 64, `\r\n`),
		"base64 in YAML":         wrap(std, 64, "\n      "),
		"base64 for URLs":        wrap(url, 76, "\n"),
		"narrow base64":          wrap(std, 20, "\n"),
		"base64 with a prefix":   wrap(std, 64, "\n12:00:01 stdout: "),
		"document in base64":     wrap(document, 76, "\n"),
	}
}

// visible returns the length in bytes of the longest part of the value that can be read from the text, either directly or from digits
// without their separators.
func visible(text, value string) int {
	text = strings.ReplaceAll(text, redact.Mask, "|")
	digits := hex.EncodeToString([]byte(value))
	bare := strings.NewReplacer(" ", "", "\n", "", "\t", "", ":", "", ",", "", "0x", "", `\x`, "").Replace(strings.ToLower(text))
	longest := 0
	for length := 1; length <= len(value); length++ {
		for start := 0; start+length <= len(value); start++ {
			part := value[start : start+length]
			if strings.Contains(text, part) || length > 2 && strings.Contains(bare, digits[2*start:2*(start+length)]) {
				longest = length
			}
		}
		if longest < length && length > 3 {
			break
		}
	}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		encoded := encoding.EncodeToString([]byte(value))
		for length := 8; length <= len(encoded); length++ {
			for start := 0; start+length <= len(encoded); start++ {
				if strings.Contains(text, encoded[start:start+length]) {
					longest = max(longest, length*3/4)
				}
			}
		}
	}
	return longest
}

func TestRedactorHidesDigitsWithSeparators(t *testing.T) {
	for name, text := range spellings(binary) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(visible(text, binary)).To(BeNumerically(">", 4), "the test can see it")
			redacted := redact.New(binary).String("before " + text + " after")
			g.Expect(redacted).To(And(HavePrefix("before "), HaveSuffix(" after"), ContainSubstring(redact.Mask)))
			// The last line of a dump has 6 bytes.
			g.Expect(visible(redacted, binary)).To(BeNumerically("<=", 6), redacted)
		})
	}
}

func TestWriterHidesDigitsAcrossWrites(t *testing.T) {
	for name, text := range spellings(binary) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			redactor := redact.New(binary)
			for _, size := range []int{1, 2, 3, 5, 7, 16, 61, 100} {
				var out bytes.Buffer
				writer := redactor.Writer(&out)
				for rest := "before " + text + " after"; rest != ""; rest = rest[min(size, len(rest)):] {
					g.Expect(writer.Write([]byte(rest[:min(size, len(rest))]))).Error().NotTo(HaveOccurred())
				}
				g.Expect(writer.Close()).To(Succeed())
				g.Expect(visible(out.String(), binary)).To(BeNumerically("<=", 6), "writes of %d bytes: %s", size, out.String())
			}
		})
	}
}

func TestWriterDoesNotWaitForLinesThatLookLikeABeginning(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	digits := base64.StdEncoding.EncodeToString([]byte(binary))
	writer := redact.New(binary).Writer(&out)
	g.Expect(writer.Write([]byte("a line that ends with " + digits[:3] + "\n"))).Error().NotTo(HaveOccurred())
	g.Expect(out.String()).To(HaveSuffix(digits[:3] + "\n"))
}

func TestWriterHoldsBackABoundedAmount(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	writer := redact.New(binary).Writer(&out)
	text := apart(binary, "%02x", strings.Repeat(" ", 1000))
	g.Expect(writer.Write([]byte(text))).Error().NotTo(HaveOccurred())
	g.Expect(len(text)-out.Len()).To(BeNumerically("<", 30*len(binary)), "separators of that length end the value")
}

func TestLinesOfALongerValueAreHiddenOnTheirOwn(t *testing.T) {
	const key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqV\nTm50DFtMDoQi\nkMgVMM==\n-----END PRIVATE KEY-----\n"
	const settings = "apiVersion: v1\nusers:\n- name: admin\n  password: hunter22-hunter22\n  pin: 123456789\ntok=abc\n"
	redactor := redact.New(key, settings)
	for line, hidden := range map[string]bool{
		"MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqV": true, "Tm50DFtMDoQi": true, "kMgVMM==": true, "password: hunter22-hunter22": true, "pin: 123456789": true,
		"-----BEGIN PRIVATE KEY-----": false, "-----END PRIVATE KEY-----": false, "apiVersion: v1": false, "users:": false, "tok=abc": false,
	} {
		want := line
		if hidden {
			want = redact.Mask
		}
		NewWithT(t).Expect(redactor.String("12:00 | " + line)).To(Equal("12:00 | " + want))
	}
}

// FuzzDigits checks that a value is found in digits, however they are wrapped and split between writes.
func FuzzDigits(f *testing.F) {
	f.Add("hunter22-hunter22", uint8(7), uint8(3), false)
	f.Add(binary, uint8(64), uint8(1), true)
	f.Fuzz(func(t *testing.T, value string, columns, chunk uint8, asHex bool) {
		if len(value) < 8 || len(value) > 1000 || strings.TrimSpace(value) != value || redact.New(value).String(value) != redact.Mask {
			return
		}
		digits := base64.RawStdEncoding.EncodeToString([]byte(value))
		width := max(4, int(columns))
		if asHex {
			digits, width = hex.EncodeToString([]byte(value)), width/2*2
		}
		var out bytes.Buffer
		writer := redact.New(value).Writer(&out)
		for rest := wrap(digits, width, "\n"); rest != ""; rest = rest[min(int(chunk)+1, len(rest)):] {
			_, _ = writer.Write([]byte(rest[:min(int(chunk)+1, len(rest))]))
		}
		_ = writer.Close()
		// The last digit of base64 may depend on the bytes that follow.
		if left := strings.TrimSpace(strings.ReplaceAll(out.String(), redact.Mask, "")); len(left) > 1 {
			t.Fatalf("%q of %q is visible", left, digits)
		}
	})
}
