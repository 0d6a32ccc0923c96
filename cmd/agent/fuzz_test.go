package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzEnvironmentFile checks that the error for a file that cannot be parsed names the line, is found in time, and does not contain the
// content of the file.
func FuzzEnvironmentFile(f *testing.F) {
	for _, seed := range []string{
		"TEST_A=1\nexport TEST_B='two\nlines'\n", "TEST_A=\"unfinished canary-s3cr3t-value\nTEST_B=1\n", "canary-s3cr3t-value", "=canary-s3cr3t-value", "TEST_A='a\n" + strings.Repeat("x\n", 300),
		"TEST_A=$TEST_A${TEST_A}\n", "\xef\xbb\xbfTEST_A=1", "TEST_A: yaml\n", "TEST_A=\x00", "TEST_A=a # 'b\nTEST_B=`c`\n", strings.Repeat("'\n", 200), "TEST A=1", "\r\r\r",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), ".env")
	f.Fuzz(func(t *testing.T, content []byte) {
		if len(content) > 4096 {
			return
		}
		begin := time.Now()
		variables, err := parseEnvironment(content)
		if err == nil {
			if _, nameless := variables[""]; nameless {
				t.Fatalf("%q has a variable without a name", content)
			}
			return
		}
		if line := malformedLine(content); line < 1 || line > bytes.Count(content, []byte("\n"))+1 {
			t.Fatalf("line %d of %q", line, content)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadEnvironment(path); err == nil || strings.Contains(err.Error(), "canary") {
			t.Fatalf("%q: %v", content, err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Fatalf("%q took %s", content, took)
		}
	})
}
