package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/controlplane"
)

// processesIn returns the ids of the processes whose working directory is below the given one.
func processesIn(g *WithT, dir string) []string {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	g.Expect(err).NotTo(HaveOccurred())
	var found []string
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir+"/") {
			found = append(found, strings.Split(link, "/")[2])
		}
	}
	return found
}

func TestStopLeavesNeitherProcessNorFile(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "cp")
	cp, err := controlplane.Start(t.Context(), controlplane.Options{Dir: dir, CRDs: []string{}})
	g.Expect(err).NotTo(HaveOccurred())
	supervisor := fmt.Sprintf("/proc/%d", cp.Supervisor().PID())
	g.Expect(processesIn(g, dir)).To(HaveLen(2), "etcd and kube-apiserver")

	g.Expect(cp.Stop()).To(Succeed())
	g.Expect(processesIn(g, dir)).To(BeEmpty())
	g.Expect(supervisor).NotTo(BeADirectory())
	g.Expect(dir).NotTo(BeADirectory())
	g.Expect(cp.Stop()).To(Succeed(), "stopping twice is fine")
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "cp")
	broken := filepath.Join(t.TempDir(), "etcd")
	g.Expect(os.WriteFile(broken, []byte("#!/bin/sh\necho the disk is on fire >&2\nexit 4\n"), 0o700)).To(Succeed())
	t.Setenv("TEST_ASSET_ETCD", broken)

	_, err := controlplane.Start(context.Background(), controlplane.Options{Dir: dir})
	g.Expect(err).To(MatchError(And(
		ContainSubstring("start etcd"), ContainSubstring("exit status 4"), ContainSubstring("the disk is on fire"))))
	g.Expect(processesIn(g, dir)).To(BeEmpty())
	g.Expect(dir).NotTo(BeADirectory())
}
