package app

import (
	"math"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
)

func TestEventWhoseHandlerPanicsIsSkipped(t *testing.T) {
	g := NewWithT(t)
	continueAfterPanics()
	source := fcache.NewFakeControllerSource()
	informer := toolscache.NewSharedInformer(source, &corev1.ConfigMap{}, 0)
	var handled atomic.Int32
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if object.(*corev1.ConfigMap).Name == "hostile" {
			panic("canary")
		}
		handled.Add(1)
	}})
	g.Expect(err).NotTo(HaveOccurred())
	go informer.RunWithContext(t.Context())
	g.Eventually(informer.HasSynced).WithTimeout(time.Minute).Should(BeTrue())
	for _, name := range []string{"hostile", "harmless"} {
		source.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	g.Eventually(handled.Load).WithTimeout(time.Minute).Should(BeEquivalentTo(1), "the events that follow are handled")
}

func TestMemoryLimitLeavesRoomForTheKernel(t *testing.T) {
	g := NewWithT(t)
	before := debug.SetMemoryLimit(512 << 20)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	limitMemory()
	g.Expect(debug.SetMemoryLimit(-1)).To(And(BeNumerically(">", 460<<20), BeNumerically("<", 461<<20)))

	debug.SetMemoryLimit(math.MaxInt64)
	limitMemory()
	g.Expect(debug.SetMemoryLimit(-1)).To(BeEquivalentTo(int64(math.MaxInt64)), "none is none")
}
