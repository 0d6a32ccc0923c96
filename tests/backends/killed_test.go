package backends_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

// killed shows what becomes of a stack whose pulumi is killed: in the middle of an update of a resource, it heals by itself; in the middle of
// a creation, it says how it is mended, and that works at once.
func (b backend) killed(t *testing.T, name string) {
	t.Helper()
	a := deploy(t, name, b.url, b.env)
	journal := filepath.Join(t.TempDir(), "journal")
	noted := func() string {
		content, _ := os.ReadFile(journal)
		return string(content)
	}
	// The resources note what is done to them, and take so many seconds each.
	push := func(value string, seconds ...int) {
		lines := []string{"resources:"}
		for i, seconds := range seconds {
			lines = append(lines, fmt.Sprintf("  slow%d:\n    type: test:index:Sleep\n    properties: {journal: %q, seconds: %d}\n    options: {version: 0.1.0}",
				i, journal, seconds))
		}
		a.push(program(name, value, lines...))
	}
	a.Await(scene.Showing("1"))
	a.InstallProvider(name)
	push("2", 0)
	a.Await(scene.Showing("2"))
	a.Expect(noted()).To(Equal("create start\ncreate end\n"))

	push("3", 8)
	a.Eventually(noted).Should(HaveSuffix("update start\n"))
	a.KillPulumi()
	stack := a.Await(scene.Showing("3"))
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	a.Expect(noted()).To(HavePrefix("create start\ncreate end\nupdate start\n"))
	a.Expect(noted()).To(HaveSuffix("update start\nupdate end\n"))
	a.Expect(strings.Count(noted(), "create start")).To(Equal(1))

	push("4", 8, 1000)
	a.Eventually(noted).Should(HaveSuffix("create start\n"))
	a.KillPulumi()
	a.Await(failing("could create it twice"))
	push("5", 8, 0)
	a.pulumi("refresh", "--stack=dev", "--yes", "--skip-preview", "--clear-pending-creates")
	a.Await(scene.Showing("5"))
	a.Expect(strings.Count(noted(), "create start")).To(Equal(3), noted())
	a.Expect(a.resources()).To(Equal(4), "the stack, its provider and two resources")
}

// It runs before the parallel tests, which stop the servers.
func TestKilledUpdateHealsWithItsLock(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) backend{"file": inDirectory, "s3": inObjectStore, "postgres": inDatabase} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start(t, "killed").killed(t, "killed-"+name)
		})
	}
}
