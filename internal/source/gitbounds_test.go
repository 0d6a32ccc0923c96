package source

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func long(length int) string { return strings.Repeat("x", length) }

// A Stack may have 256 KiB of annotations that ask for a poll.
func TestSubscriptionsHoldLittleOfWhatTheirStacksWrite(t *testing.T) {
	d := newDriver(t, GitOptions{})
	held := func() int64 {
		var memory runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&memory)
		return int64(memory.HeapAlloc)
	}
	const stacks = 100
	before := held()
	for i := range stacks {
		query := queryOf(fmt.Sprint(i), branch("main"))
		query.Token = fmt.Sprint(i) + long(200<<10)
		_, _ = d.stacks.Subscribe(query)
	}
	d.Expect(d.subscriptions).To(HaveLen(stacks))
	d.Expect(held() - before).To(BeNumerically("<", 4<<20))
	runtime.KeepAlive(d)
}

func TestLongFieldsOfAGitSourceAreRefused(t *testing.T) {
	d := newDriver(t, GitOptions{})
	for what, source := range map[string]*autov1alpha1.GitSource{
		"URL":         {URL: "https://git.example/" + long(5000), Ref: "main"},
		"ref":         branch(long(2000)),
		"Secret":      {URL: testURL, Ref: "main", Auth: &autov1alpha1.GitAuth{SecretRef: &meta.LocalObjectReference{Name: long(10_000)}}},
		"key":         {URL: testURL, Ref: "main", Auth: &autov1alpha1.GitAuth{Token: &corev1.SecretKeySelector{Key: long(10_000), Name: "git"}}},
		"known hosts": {URL: testURL, Ref: "main", Auth: &autov1alpha1.GitAuth{KnownHostsRef: &autov1alpha1.KnownHostsReference{Name: long(10_000)}}},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			_, err := d.stacks.Subscribe(queryOf("app", source))
			g.Expect(err).To(And(HaveField("Reason", pulumiv1.SpecInvalidReason), HaveField("Permanent", true)))
			g.Expect(len(err.Error())).To(BeNumerically("<", 300))
			g.Expect(d.subscriptions).To(BeEmpty())
		})
	}
}
