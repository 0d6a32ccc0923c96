package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// openFile returns a new event log, and its file opened as the CLI opens it.
func openFile(t *testing.T, parent string, receive func([]byte)) (*eventFile, *os.File) {
	t.Helper()
	g := NewWithT(t)
	log, err := newEventFile(parent, receive, false)
	g.Expect(err).NotTo(HaveOccurred())
	cli, err := os.OpenFile(log.file.Name(), os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o666)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = cli.Close() })
	return log, cli
}

func TestEventsInAFileAreReceivedAsTheyAreWritten(t *testing.T) {
	g := NewWithT(t)
	parent := t.TempDir()
	var mu sync.Mutex
	var events []string
	log, cli := openFile(t, parent, func(event []byte) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, string(event))
	})
	write := func(text string) {
		g.Expect(cli.WriteString(text)).Error().NotTo(HaveOccurred())
	}
	received := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return events
	}
	write(`{"first":`)
	write("1}\nnot an event\n")
	g.Eventually(received).WithTimeout(10 * time.Second).Should(HaveExactElements(`{"first":1}`, "not an event"))
	// Events that are written right before the end are received.
	write(`{"second":2}` + "\n" + `{"third":`)
	log.end()
	log.remove()
	g.Expect(received()).To(HaveExactElements(`{"first":1}`, "not an event", `{"second":2}`, `{"third":`))
	g.Expect(os.ReadDir(parent)).To(BeEmpty())
}

func TestFileOfEventsIsForTheAgentAloneAndKeepsNothingThatWasRead(t *testing.T) {
	g := NewWithT(t)
	var received atomic.Int64
	log, cli := openFile(t, t.TempDir(), func([]byte) { received.Add(1) })
	defer log.remove()
	defer log.end()
	for _, path := range []string{log.file.Name(), filepath.Dir(log.file.Name())} {
		info, err := os.Stat(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode()&0o077).To(BeZero(), path)
	}
	const events, size = 100, 256 << 10
	for range events {
		_, err := fmt.Fprintf(cli, "{\"diagnosticEvent\":{\"message\":%q}}\n", strings.Repeat("canary", size/6))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(received.Load).WithTimeout(30 * time.Second).Should(BeEquivalentTo(events))
	info, err := cli.Stat()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Size()).To(BeNumerically(">", events*size))
	g.Expect(info.Sys().(*syscall.Stat_t).Blocks*512).To(BeNumerically("<", 2*eventBuffer), "what was read takes room on the disk")
	content, err := os.ReadFile(log.file.Name())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).NotTo(ContainSubstring("canary"))
}

func TestFileToWhichSomebodyGoesOnToWriteEnds(t *testing.T) {
	g := NewWithT(t)
	log, cli := openFile(t, t.TempDir(), func([]byte) {})
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		line := strings.Repeat("x", 4<<20) + "\n"
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = cli.WriteString(line)
			}
		}
	}()
	start := time.Now()
	log.end()
	log.remove()
	took := time.Since(start)
	close(stop)
	<-stopped
	g.Expect(took).To(BeNumerically("<", 2*eventLogTimeout))
}

func TestAnAgentRemovesTheFilesOfOneThatCrashed(t *testing.T) {
	g := NewWithT(t)
	options := Options{Name: filepath.Join(t.TempDir(), "pulumi"), Dir: filepath.Join(t.TempDir(), "events")}
	g.Expect(os.WriteFile(options.Name, []byte("#!/bin/sh\necho v3.100.0\n"), 0o755)).To(Succeed())
	first, err := New(options)
	g.Expect(err).NotTo(HaveOccurred())
	log, err := newEventFile(first.eventDir, func([]byte) {}, false)
	g.Expect(err).NotTo(HaveOccurred())
	defer log.remove()
	defer log.end()
	g.Expect(log.file.Name()).To(BeAnExistingFile())

	g.Expect(New(options)).Error().NotTo(HaveOccurred())
	g.Expect(filepath.Dir(log.file.Name())).NotTo(BeAnExistingFile())
}

func TestSlowReaderOfEventsMissesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		received := 0
		log, cli := openFile(t, t.TempDir(), func([]byte) {
			time.Sleep(20 * time.Second)
			received++
		})
		for range 6 {
			g.Expect(cli.WriteString(strings.Repeat("x", 2*eventBuffer) + "\n")).Error().NotTo(HaveOccurred())
		}
		log.end()
		log.remove()
		g.Expect(received).To(Equal(6))
	})
}
