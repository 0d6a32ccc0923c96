package background

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestRecordIsRemovedWithItsDirectory(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "records", "1.json")
	r, err := NewRecord(path, "stack-test-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Process.Running()).To(BeTrue())
	g.Expect(ReadRecord(path)).To(Equal(r))

	g.Expect(r.Remove()).To(Succeed())
	g.Expect(r.Dir).NotTo(BeADirectory())
	g.Expect(path).NotTo(BeARegularFile())
}
