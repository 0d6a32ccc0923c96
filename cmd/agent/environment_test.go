package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// load loads a file with the content. The variables with the names are unset before, and restored at the end of the test.
func load(t *testing.T, content string, names ...string) error {
	t.Helper()
	for _, name := range names {
		t.Setenv(name, "")
		NewWithT(t).Expect(os.Unsetenv(name)).To(Succeed())
	}
	path := filepath.Join(t.TempDir(), ".env")
	NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	_, err := loadEnvironment(path)
	return err
}

func TestVariablesOfTheFileAreSet(t *testing.T) {
	tests := []struct{ name, content, want string }{
		{"plain", "TEST_A=value\n", "value"},
		{"without a last newline", "TEST_A=value", "value"},
		{"export", "export TEST_A=value\n", "value"},
		{"comments", "# first\n\nTEST_A=value # last\n", "value"},
		{"single quotes", "TEST_A='va#l $x'\n", "va#l $x"},
		{"double quotes", `TEST_A="a\nb"` + "\n", "a\nb"},
		{"several lines", "TEST_A='a\nb'\nTEST_B=1\n", "a\nb"},
		{"empty", "TEST_A=\n", ""},
		{"equals sign", "TEST_A=a=b\n", "a=b"},
		{"Windows", "TEST_A=value\r\n", "value"},
		{"the last one wins", "TEST_A=1\nTEST_A=2\n", "2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(load(t, tt.content, "TEST_A", "TEST_B")).To(Succeed())
			value, set := os.LookupEnv("TEST_A")
			g.Expect(set).To(BeTrue())
			g.Expect(value).To(Equal(tt.want))
		})
	}
}

// A shell would read most of these files in another way, and run parts of some.
func TestCommandsHaveTheVariablesOfTheAgent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ".env")
	for content, want := range map[string]string{
		"TEST_A=s3://state?region=eu&endpoint=s3.example.com\n": "s3://state?region=eu&endpoint=s3.example.com",
		"TEST_A=two words\n":                                          "two words",
		"TEST_A=a; touch " + dir + "/ran\n":                           "a; touch " + dir + "/ran",
		"TEST_A=$(touch " + dir + "/ran)\n":                           "$(touch " + dir + "/ran)",
		"TEST_A='$HOME `id` \\ \"x\"'\n":                              "$HOME `id` \\ \"x\"",
		`TEST_A="\$HOME \"x\" it's\n"` + "\n":                         "$HOME \"x\" it's\n",
		`TEST_A=it's "x"` + "\n":                                      `it's "x"`,
		`TEST_A=C:\path` + "\n":                                       `C:\path`,
		"TEST_A: yaml\n":                                              "yaml",
		"export TEST_A='line one\nline two'\n":                        "line one\nline two",
		"TEST_SET=of the file\nTEST_A=1\nTEST_A=\"2 # no comment\"\n": "2 # no comment",
	} {
		t.Run(content, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(load(t, content, "TEST_A", "TEST_SET")).To(Succeed())
			g.Expect(os.Getenv("TEST_A")).To(Equal(want))
			g.Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
			command := exec.Command(os.Args[0], "exec", "--env-file="+path, "sh", "-c", `printf '%s|%s|%s' "$TEST_A" "$TEST_SET" "$1"; exit 3`, "sh", "an argument")
			command.Env = []string{actAsAgent + "=1", "PATH=" + os.Getenv("PATH"), "HOME=/home", "TEST_SET=of the container"}
			output, err := command.Output()
			g.Expect(command.ProcessState.ExitCode()).To(Equal(3), "%v", err)
			g.Expect(string(output)).To(Equal(want + "|of the container|an argument"))
			g.Expect(filepath.Join(dir, "ran")).NotTo(BeAnExistingFile())
		})
	}
}

func TestVariablesThatAreSetWin(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("TEST_A", "before")
	g.Expect(load(t, "TEST_A=after\nTEST_B=after\n", "TEST_B")).To(Succeed())
	g.Expect(os.Getenv("TEST_A")).To(Equal("before"))
	g.Expect(os.Getenv("TEST_B")).To(Equal("after"))
}

func TestAFileThatIsNotThereHasNoVariables(t *testing.T) {
	NewWithT(t).Expect(loadEnvironment(filepath.Join(t.TempDir(), "none"))).To(BeEmpty())
}

func TestAMalformedFileIsReportedWithoutItsContent(t *testing.T) {
	tests := []struct {
		name, content string
		line          int
	}{
		{"no name", "A=1\n=canary\n", 2},
		{"no equals sign", "A=1\n\n# comment\ncanary canary\nB=2\n", 4},
		{"an equals sign is missing at the end", "A=1\ncanary", 2},
		{"impossible name", "A=1\nB='1\n2'\nca-nary=1\n", 4},
		{"open quote", "A=1\nB=2\nC='canary\nD=3\n", 3},
		{"null byte", "A=1\nB=canary\x00\n", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			err := load(t, tt.content, "A", "B", "C", "D")
			g.Expect(err).To(MatchError(And(ContainSubstring(fmt.Sprintf("line %d", tt.line)), Not(ContainSubstring("canary")))))
			_, set := os.LookupEnv("A")
			g.Expect(set).To(BeFalse(), "some of it was set")
		})
	}
	NewWithT(t).Expect(load(t, strings.Repeat("#", maxEnvironmentFile+1))).To(MatchError(ContainSubstring("larger than")))
}

func TestALargeMalformedFileIsReportedSoon(t *testing.T) {
	content := append(bytes.Repeat([]byte("A=1\n"), maxEnvironmentFile/8), bytes.Repeat([]byte("'\n"), maxEnvironmentFile/8)...)
	NewWithT(t).Expect(load(t, string(content))).To(MatchError(ContainSubstring(fmt.Sprintf("line %d", maxEnvironmentFile/8+1))))
}

func TestTheMemoryLimitIsTheContainers(t *testing.T) {
	g := NewWithT(t)
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for value, want := range map[string]int64{"67108864": 64 << 20, "1": leastMemory} {
		t.Setenv(memoryLimit, value)
		g.Expect(limitMemory()).To(Succeed())
		g.Expect(debug.SetMemoryLimit(-1)).To(Equal(want), value)
	}
	debug.SetMemoryLimit(math.MaxInt64)
	for _, value := range []string{"", "0"} {
		t.Setenv(memoryLimit, value)
		g.Expect(limitMemory()).To(Succeed())
		g.Expect(debug.SetMemoryLimit(-1)).To(BeEquivalentTo(math.MaxInt64), value)
	}
	for _, value := range []string{"64Mi", "-1"} {
		t.Setenv(memoryLimit, value)
		g.Expect(limitMemory()).To(MatchError(ContainSubstring(value)))
	}
}

func TestLongValuesOfTheFileCountAsSecret(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("TEST_SET", "before")
	path := filepath.Join(t.TempDir(), ".env")
	g.Expect(os.WriteFile(path, []byte("TEST_SET='a long one too'\nTEST_SHORT=true\n"), 0o600)).To(Succeed())
	t.Setenv("TEST_SHORT", "")
	g.Expect(loadEnvironment(path)).To(ConsistOf("a long one too"))
}
