package git_test

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// BenchmarkCheckout checks out and packs a large repository, the sources of Go's standard library: about 10,000 files of 100 MB in all. The
// server sends many of them as deltas.
func BenchmarkCheckout(b *testing.B) {
	g := NewWithT(b)
	o, url := repository(b)
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	g.Expect(err).NotTo(HaveOccurred())
	source := filepath.Join(strings.TrimSpace(string(goroot)), "src")
	g.Expect(filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, _ := filepath.Rel(source, path)
		content, err := os.ReadFile(path)
		o.write(name, string(content))
		return err
	})).To(Succeed())
	sha := o.commit("large")
	gitIn(b, o.bare, "gc", "--quiet")
	client := newClient(b, git.Options{})
	before, loops := cpuTime(), 0
	for ; b.Loop(); loops++ {
		_, err := client.Archive(b.Context(), git.Remote{URL: url}, sha, io.Discard)
		g.Expect(err).NotTo(HaveOccurred())
	}
	b.ReportMetric(float64((cpuTime()-before).Milliseconds())/float64(loops), "cpu-ms/op")
}

// cpuTime returns the processor time of this process. The git program that serves the repository is another process and is not included.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
