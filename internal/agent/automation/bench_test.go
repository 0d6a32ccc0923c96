package automation_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// BenchmarkUpdateWithoutChanges compares an update through the Runner with the bare command: `pulumi up --skip-preview --yes`. It
// reports the medians in milliseconds.
func BenchmarkUpdateWithoutChanges(b *testing.B) {
	f := newFixture(b)
	f.write("Pulumi.yaml", simpleProgram)
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	// The wrapper of the tests costs time of its own.
	f.Expect(os.Remove(f.options.Pulumi)).To(Succeed())
	f.Expect(os.Symlink(tool(b, "pulumi"), f.options.Pulumi)).To(Succeed())
	var bare, ours []float64
	for b.Loop() {
		start := time.Now()
		cmd := exec.CommandContext(b.Context(), f.options.Pulumi, "up", "--skip-preview", "--yes", "--non-interactive", "--stack", "dev")
		cmd.Dir = f.project
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(f.options.Pulumi), "PULUMI_HOME="+filepath.Join(f.home, ".pulumi"), "PULUMI_BACKEND_URL=file://"+f.state,
			"PULUMI_CONFIG_PASSPHRASE="+passphrase, "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER=true", "PULUMI_SKIP_UPDATE_CHECK=true")
		output, err := cmd.CombinedOutput()
		f.Expect(err).NotTo(HaveOccurred(), string(output))
		bare = append(bare, float64(time.Since(start).Milliseconds()))
		start = time.Now()
		f.Expect(f.run(up).GetState()).To(Equal(succeeded))
		ours = append(ours, float64(time.Since(start).Milliseconds()))
	}
	b.ReportMetric(median(bare), "bare-ms")
	b.ReportMetric(median(ours), "runner-ms")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
