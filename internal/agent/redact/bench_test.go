package redact_test

import (
	"bytes"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

// secrets returns the secrets of an operation that has many: tokens and a key of several lines.
func secrets() []string {
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf("t0ken-%d-%x", i, i*2654435761))
	}
	var key strings.Builder
	key.WriteString("-----BEGIN PRIVATE KEY-----\n")
	for i := range 50 {
		sum := sha512.Sum512([]byte{byte(i)})
		key.WriteString(base64.StdEncoding.EncodeToString(sum[:48]) + "\n")
	}
	key.WriteString("-----END PRIVATE KEY-----\n")
	return append(all, key.String())
}

// BenchmarkWriter redacts what programs print: text, base64 and dumps.
func BenchmarkWriter(b *testing.B) {
	for name, line := range map[string]string{
		"text":   " +  aws:s3:Bucket logs-archive creating (12s) [diff: +tags] in stack organization/infra/prod\n",
		"base64": "c29tZSBvcmRpbmFyeSB0ZXh0IHRoYXQgaXMgZW5jb2RlZCBhcyBiYXNlNjQgYW5kIHdyYXBwZWQgYXQgNzY=\n",
		"hex":    "00000010: 6f72 6469 6e61 7279 2074 6578 7420 7468  ordinary text th\n",
	} {
		text := bytes.Repeat([]byte(line), (1<<20)/len(line))
		b.Run(name, func(b *testing.B) {
			redactor := redact.New(secrets()...)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				writer := redactor.Writer(io.Discard)
				for rest := text; len(rest) > 0; rest = rest[min(len(rest), 4096):] {
					_, _ = writer.Write(rest[:min(len(rest), 4096)])
				}
				_ = writer.Close()
			}
		})
	}
}

// BenchmarkAdd adds the secrets to a Redactor.
func BenchmarkAdd(b *testing.B) {
	for b.Loop() {
		redact.New(secrets()...)
	}
	b.ReportAllocs()
}
