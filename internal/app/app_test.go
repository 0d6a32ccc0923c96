package app

import (
	"math"
	"net"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/stack-controller/stack-controller/internal/source/artifact/download"
	"github.com/stack-controller/stack-controller/internal/source/netguard"
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
		source.Add(&corev1.ConfigMap{Name: name})
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

func TestArtifactsAreNotFetchedFromAddressesOfTheMachine(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	dial := func(runtime string) error {
		connection, err := guarded(net.Dialer{}, &options{workspace: workspaceOptions{runtime: runtime}}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err == nil {
			err = connection.Close()
		}
		return err
	}
	g.Expect(dial(runtimePod)).To(MatchError(netguard.ErrRefused))
	g.Expect(dial(runtimeProcess)).To(Succeed(), "one owner has everything")
	t.Setenv(download.HostOverrideVariable, listener.Addr().String())
	g.Expect(dial(runtimePod)).To(Succeed(), "the operator of the controller chose the host")
}
