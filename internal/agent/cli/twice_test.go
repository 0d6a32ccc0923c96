package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestEventsAfterAPreviewAreReadFromTheirBeginning truncates the log and starts it again, as pulumi does for the update after its preview.
func TestEventsAfterAPreviewAreReadFromTheirBeginning(t *testing.T) {
	g := NewWithT(t)
	var followed sync.Map
	log, err := newEventFile(t.TempDir(), func(event []byte) { followed.Store(string(event), true) }, true)
	g.Expect(err).NotTo(HaveOccurred())
	write := func(from, to int, flags int) {
		file, err := os.OpenFile(log.file.Name(), os.O_WRONLY|os.O_APPEND|flags, 0o600)
		g.Expect(err).NotTo(HaveOccurred())
		for i := from; i < to; i++ {
			_, err := fmt.Fprintf(file, `{"sequence":%d}`+"\n", i)
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(file.Close()).To(Succeed())
	}
	awaitFollowed := func(sequence int) {
		g.Eventually(func() bool {
			_, found := followed.Load(fmt.Sprintf(`{"sequence":%d}`, sequence))
			return found
		}, 30*time.Second, eventPoll).Should(BeTrue(), "the progress goes on, too")
	}
	write(0, 1000, 0)
	awaitFollowed(999)
	write(5000, 5010, os.O_TRUNC)
	awaitFollowed(5009)
	write(5010, 7000, 0)
	log.end()
	defer log.remove()
	var read []string
	eachEvent(io.NewSectionReader(log.file, 0, log.limit), func(event []byte) { read = append(read, string(event)) })
	g.Expect(read).To(HaveLen(2000))
	g.Expect(read[0]).To(Equal(`{"sequence":5000}`))
}
