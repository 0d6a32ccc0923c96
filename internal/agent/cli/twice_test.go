package cli

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestEventsAfterAPreviewAreReadFromTheirBeginning has a CLI that begins its log anew, as pulumi does for the update after its preview.
func TestEventsAfterAPreviewAreReadFromTheirBeginning(t *testing.T) {
	g := NewWithT(t)
	var followed []string
	log, err := newEventFile(t.TempDir(), func(event []byte) { followed = append(followed, string(event)) }, true)
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
	write(0, 1000, 0)
	time.Sleep(3 * eventPoll) // follow has read some of it, or all
	write(5000, 5010, os.O_TRUNC)
	time.Sleep(3 * eventPoll)
	write(5010, 7000, 0)
	log.end()
	defer log.remove()
	var read []string
	eachEvent(io.NewSectionReader(log.file, 0, log.limit), func(event []byte) { read = append(read, string(event)) })
	g.Expect(read).To(HaveLen(2000))
	g.Expect(read[0]).To(Equal(`{"sequence":5000}`))
	g.Expect(followed).To(ContainElement(`{"sequence":5000}`), "the progress goes on, too")
}
