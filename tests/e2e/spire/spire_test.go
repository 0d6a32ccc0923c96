package spire_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"

	"github.com/stack-controller/stack-controller/internal/spiffe"
	"github.com/stack-controller/stack-controller/tests/e2e/spire"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/postgres"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const (
	path = "/ns/flux-system/sa/stack-controller"
	// lifetime is that of certificates. SPIRE renews them after half of it.
	lifetime = 40 * time.Second
	patience = 2 * time.Minute
)

var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	suite.LongPackage("builds and runs SPIRE; internal/spiffe has a Workload API of its own")
	os.Exit(controlplane.RunTests(m, controlplane.Options{CRDs: []string{}}, func(cp *controlplane.ControlPlane) error {
		cluster = cp
		return nil
	}))
}

func TestIdentitiesOfSPIRESecureRequestsThroughTheirWholeLife(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	ctx := t.Context()
	database, err := postgres.Start(ctx, cluster)
	g.Expect(err).NotTo(HaveOccurred())
	real, err := spire.Start(ctx, cluster, database)
	g.Expect(err).NotTo(HaveOccurred())

	var logged syncedLog
	identity, err := spiffe.New(spiffe.Options{
		Address: real.Address, Registerer: prometheus.NewRegistry(), Patience: 5 * time.Second,
		Log: funcr.New(func(_, args string) { logged.add(args) }, funcr.Options{}),
	})
	g.Expect(err).NotTo(HaveOccurred())
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- identity.Start(running) }()
	defer func() { stop(); g.Expect(<-ended).To(Succeed()) }()
	ready := func() error { return identity.Ready(nil) }

	// Nobody has registered the controller.
	g.Eventually(logged.String).Should(ContainSubstring("waiting for a SPIFFE identity"))
	g.Expect(ready()).To(MatchError(ContainSubstring("the SPIFFE Workload API has none for it")))

	// The identity comes. The server has the same one.
	entry, err := real.Register(ctx, path, lifetime)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(ready).Should(Succeed())
	id := "spiffe://" + spire.TrustDomain + path
	url := serve(g, t, tlsconfig.MTLSServerConfig(identity, identity, tlsconfig.AuthorizeID(spiffeid.RequireFromString(id))))
	get := func(peer string) error {
		peers, err := spiffe.ParsePeers([]string{peer})
		g.Expect(err).NotTo(HaveOccurred())
		client := &http.Client{Transport: identity.Transport(peers, spiffe.ArtifactServer, (&net.Dialer{}).DialContext)}
		defer client.CloseIdleConnections()
		response, err := client.Get(url)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	g.Expect(get(id)).To(Succeed())
	g.Expect(get("spiffe://self/ns/flux-system/")).To(Succeed())
	explained := (*spiffe.Error)(nil)
	g.Expect(errors.As(get("spiffe://self/other"), &explained)).To(BeTrue())
	g.Expect(explained.Explanation()).To(ContainSubstring("none of those in --authorized-artifact-server-spiffe-id"))

	// Renewals do not interrupt.
	serial := func() string {
		svid, err := identity.GetX509SVID()
		g.Expect(err).NotTo(HaveOccurred())
		return svid.Certificates[0].SerialNumber.String()
	}
	for first := serial(); serial() == first; time.Sleep(200 * time.Millisecond) {
		g.Expect(get(id)).To(Succeed())
	}
	g.Expect(get(id)).To(Succeed())

	// The identity gets another name.
	g.Expect(real.Rename(ctx, entry, "/renamed", lifetime)).To(Succeed())
	g.Eventually(func() error { return get(id) }).Should(MatchError(ContainSubstring("none of those in")))
	g.Expect(real.Rename(ctx, entry, path, lifetime)).To(Succeed())
	g.Eventually(func() error { return get(id) }).Should(Succeed())

	// An agent that hangs: the identity is used until it expires.
	g.Expect(real.Agent.Signal(syscall.SIGSTOP)).To(Succeed())
	g.Expect(get(id)).To(Succeed())
	g.Eventually(logged.String).Should(ContainSubstring("not renewed and will expire"))
	g.Expect(get(id)).To(Succeed())
	g.Eventually(ready).Should(MatchError(ContainSubstring("it expired at")))
	g.Expect(get(id)).To(MatchError(spiffe.ErrNoIdentity))
	g.Expect(real.Agent.Signal(syscall.SIGCONT)).To(Succeed())
	g.Eventually(func() error { return get(id) }).Should(Succeed())

	// The entry is removed: no further identity is issued.
	g.Expect(real.Remove(ctx, entry)).To(Succeed())
	g.Eventually(ready).Should(MatchError(spiffe.ErrNoIdentity))
}

// serve starts a server over TLS that answers every request, and returns an http URL of it.
func serve(g Gomega, t *testing.T, config *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		Handler:           http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	}
	go func() { _ = server.Serve(tls.NewListener(listener, config)) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String()
}

type syncedLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *syncedLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *syncedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
