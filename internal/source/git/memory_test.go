package git_test

import (
	"fmt"
	"io"
	"math/rand"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// TestMemoryDoesNotGrowWithTheRepository checks out 40 MiB that do not compress, most of it in one file, and watches the heap.
func TestMemoryDoesNotGrowWithTheRepository(t *testing.T) {
	suite.Long(t, "takes as much memory as it may")
	g := NewWithT(t)
	o, url := repository(t)
	o.write("big", random(-1, 30<<20))
	for n := range 10 {
		o.write(fmt.Sprintf("dir/%d", n), random(int64(n), 1<<20))
	}
	o.git("config", "core.compression", "0")
	o.git("config", "pack.window", "0")
	sha := o.commit("40 MiB")
	client := newClient(t, git.Options{Limits: archive.Limits{MaxDownloadSize: 200 << 20}})
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // resets the peak, on some systems only
	start := residentPeak()
	before, peak, stop := heap(), atomic.Uint64{}, make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				if now := heap(); now > peak.Load() {
					peak.Store(now)
				}
			}
		}
	}()
	started := time.Now()
	_, err := client.Archive(t.Context(), git.Remote{URL: url}, sha, io.Discard)
	g.Expect(err).NotTo(HaveOccurred())
	close(stop)
	t.Logf("%v, heap grew by %d MiB at most; resident at the start %s, at most %s",
		time.Since(started), int64(peak.Load()-before)>>20, start, residentPeak())
	g.Expect(peak.Load()-before).To(BeNumerically("<", 16<<20), "bytes on the heap")
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func residentPeak() string {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return ""
	}
	defer file.Close()
	content, _ := io.ReadAll(file)
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "VmHWM") {
			return strings.TrimSpace(strings.TrimPrefix(line, "VmHWM:"))
		}
	}
	return ""
}

// random is content that does not compress, the same for the same seed.
func random(seed int64, size int) string {
	content := make([]byte, size)
	rand.New(rand.NewSource(seed)).Read(content)
	return string(content)
}
