package tools_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestReadyMadeBinariesAreUsedInsteadOfABuild(t *testing.T) {
	g := NewWithT(t)
	assets := t.TempDir()
	named := filepath.Join(t.TempDir(), "my-etcd")
	pinned, err := tools.Version("kube-apiserver")
	g.Expect(err).NotTo(HaveOccurred())
	inAssets := filepath.Join(assets, "kube-apiserver")
	g.Expect(os.WriteFile(inAssets, []byte("#!/bin/sh\necho Kubernetes "+pinned+"\n"), 0o700)).To(Succeed())
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	t.Setenv("TEST_ASSET_ETCD", named)
	t.Setenv("TEST_ASSET_KUBE_APISERVER", "")

	g.Expect(tools.Path(t.Context(), "etcd", nil)).To(Equal(named))
	g.Expect(tools.Path(t.Context(), "kube-apiserver", nil)).To(Equal(inAssets))
}

func TestAssetsOfAnotherMinorVersionArePassedOver(t *testing.T) {
	pinned, err := tools.Version("kube-apiserver")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	minor := pinned[:strings.LastIndex(pinned, ".")]
	for name, test := range map[string]struct {
		server string // a script; there is no kube-apiserver if it is empty
		reason string // empty if the files are used
	}{
		"another patch release": {server: "echo Kubernetes " + minor + ".99"},
		"another minor version": {server: "echo Kubernetes v1.20.0", reason: "kube-apiserver is v1.20.0, not " + minor},
		"another major version": {server: "echo Kubernetes v2" + strings.TrimPrefix(pinned, "v1"), reason: ", not " + minor},
		"no version":            {server: "echo hello", reason: "does not say its version"},
		"not a program":         {server: "exit 1", reason: "for its version: exit status 1"},
		"no server":             {reason: "no such file"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			g := NewWithT(t)
			assets := t.TempDir()
			t.Setenv("KUBEBUILDER_ASSETS", assets)
			t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
			names := []string{"etcd"} // which has a version of its own
			g.Expect(os.WriteFile(filepath.Join(assets, "etcd"), []byte("#!/bin/sh\necho etcd Version: 3.5.0\n"), 0o700)).To(Succeed())
			if test.server != "" {
				names = append(names, "kube-apiserver")
				g.Expect(os.WriteFile(filepath.Join(assets, "kube-apiserver"), []byte("#!/bin/sh\n"+test.server+"\n"), 0o700)).To(Succeed())
			}
			for _, name := range names {
				t.Setenv(tools.AssetVariable(name), "")
				var lines []string
				path, err := tools.Existing(t.Context(), name, func(line string) { lines = append(lines, line) })
				g.Expect(err).NotTo(HaveOccurred())
				file := filepath.Join(assets, name)
				if test.reason == "" {
					g.Expect(path).To(Equal(file))
					g.Expect(lines).To(BeEmpty())
					continue
				}
				g.Expect(path).To(BeEmpty())
				g.Expect(lines).To(ConsistOf(And(HavePrefix(file+" "), ContainSubstring("passed over: "), ContainSubstring(test.reason))))
			}
		})
	}
}

func TestUnknownToolIsAnErrorThatNamesTheKnownOnes(t *testing.T) {
	g := NewWithT(t)
	_, err := tools.Path(t.Context(), "docker", nil)
	g.Expect(err).To(MatchError(And(ContainSubstring(`"docker"`), MatchRegexp("etcd, .*kubectl, "))))
}

func TestWaitForALockEndsWithTheContext(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := tools.Lock(t.Context(), path)
	g.Expect(err).NotTo(HaveOccurred())

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = tools.Lock(ctx, path)
	g.Expect(err).To(MatchError(context.DeadlineExceeded))

	unlock()
	unlock, err = tools.Lock(t.Context(), path)
	g.Expect(err).NotTo(HaveOccurred())
	unlock()
}
