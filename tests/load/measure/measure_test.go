package measure

import (
	"io"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestMedianIsTheMiddleOfWhateverOrder(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Samples{3, 1, 2}.Median()).To(Equal(time.Duration(2)))
	g.Expect(Samples{4, 1, 3, 2}.Median()).To(Equal(time.Duration(2)))
	g.Expect(Samples{7}.Median()).To(Equal(time.Duration(7)))
}

func TestExceededLimitIsAnErrorOnAQuietMachineOnly(t *testing.T) {
	g := NewWithT(t)
	quiet, busy := &Machine{busy: []float64{0.01, 0.1}}, &Machine{busy: []float64{0.01, 0.9}}
	l := &Limits{}
	l.Check("first", 1, 1)
	g.Expect(l.Report(io.Discard, quiet, true)).To(Succeed())
	l.Check("second", 1.01, 1)
	g.Expect(l.Report(io.Discard, quiet, true)).To(MatchError(And(ContainSubstring("second: 1.01"), Not(ContainSubstring("first")))))
	g.Expect(l.Report(io.Discard, busy, true)).To(Succeed())
	g.Expect(l.Report(io.Discard, quiet, false)).To(Succeed())
}

func TestProcessesAreKnownWithTheirTimeAndMemory(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	own, _, err := ProcessCPU(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	for time.Since(begin) < 5*time.Second {
		if now, _, _ := ProcessCPU(os.Getpid()); now > own {
			break
		}
	}
	now, _, err := ProcessCPU(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now).To(And(BeNumerically(">", own), BeNumerically("<", own+time.Minute)))
	used, err := ProcessMemory(os.Getpid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(used.Resident).To(And(BeNumerically(">", 1<<20), BeNumerically("<", 1<<30)))
	g.Expect(used.Anonymous + used.File).To(BeNumerically("<=", used.Resident))
}

func TestRequestsAreCountedByWhatTheyAreAbout(t *testing.T) {
	g := NewWithT(t)
	g.Expect(CountRequests(`# TYPE apiserver_request_total counter
apiserver_request_total{code="200",group="g",resource="stacks",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="409",group="g",resource="stacks",subresource="status",verb="PATCH"} 1
apiserver_request_total{code="200",group="",resource="leases",subresource="",verb="PUT"} 9
apiserver_request_duration_seconds_count{resource="stacks",verb="PATCH"} 4
apiserver_request_total{code="200",group="",resource="secrets",subresource="",verb="GET"} 1.2e+02
`)).To(Equal(map[string]int{"PATCH stacks/status": 4, "GET secrets": 120}))
}
