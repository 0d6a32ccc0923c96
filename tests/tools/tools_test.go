package tools_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestReadyMadeBinariesAreUsedInsteadOfABuild(t *testing.T) {
	g := NewWithT(t)
	assets := t.TempDir()
	named := filepath.Join(t.TempDir(), "my-etcd")
	inAssets := filepath.Join(assets, "kube-apiserver")
	g.Expect(os.WriteFile(inAssets, nil, 0o700)).To(Succeed())
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	t.Setenv("TEST_ASSET_ETCD", named)

	g.Expect(tools.Path(t.Context(), "etcd", nil)).To(Equal(named))
	g.Expect(tools.Path(t.Context(), "kube-apiserver", nil)).To(Equal(inAssets))
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
