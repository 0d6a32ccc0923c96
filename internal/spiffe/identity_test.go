package spiffe

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/stack-controller/stack-controller/tests/framework/workloadapi"
)

const (
	domain = "example.org"
	self   = "/ns/stack-controller/sa/stack-controller"
	server = "/ns/flux-system/sa/source-controller"
)

// fixture is an Identity that runs, and the Workload API and the authority behind it.
type fixture struct {
	*WithT
	api       *workloadapi.API
	authority *workloadapi.Authority
	identity  *Identity

	mu  sync.Mutex
	log strings.Builder
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{WithT: NewWithT(t), api: workloadapi.Start(t)}
	f.SetDefaultEventuallyTimeout(30 * time.Second)
	var err error
	f.authority, err = workloadapi.NewAuthority(domain)
	f.Expect(err).NotTo(HaveOccurred())
	return f
}

func (f *fixture) start(t *testing.T, patience time.Duration) {
	t.Helper()
	var err error
	f.identity, err = New(Options{
		Address: f.api.Address(), Registerer: prometheus.NewRegistry(), Patience: patience,
		Log: funcr.New(func(_, args string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.log.WriteString(args + "\n")
		}, funcr.Options{}),
	})
	f.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.identity.Start(ctx) }()
	t.Cleanup(func() { cancel(); f.Expect(<-ended).To(Succeed()) })
}

// running returns a fixture whose Identity has come.
func running(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.issue(self, time.Hour)
	f.start(t, 0)
	f.Eventually(f.ready).Should(Succeed())
	return f
}

func (f *fixture) issue(path string, lifetime time.Duration) *x509svid.SVID {
	issued, err := f.authority.Issue(path, lifetime)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(f.api.Send(issued, f.authority.Bundle())).To(Succeed())
	return issued
}

func (f *fixture) ready() error { return f.identity.Ready(&http.Request{}) }

func (f *fixture) logged() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.String()
}

// expectState compares the metrics.
func (f *fixture) expectState(want state) {
	metrics := "# HELP stack_controller_spiffe_identity The state of the SPIFFE identity of the controller: 1 for the state that it is in.\n" +
		"# TYPE stack_controller_spiffe_identity gauge\n"
	for _, known := range states {
		value := "0"
		if known == want {
			value = "1"
		}
		metrics += `stack_controller_spiffe_identity{state="` + string(known) + `"} ` + value + "\n"
	}
	f.Expect(testutil.CollectAndCompare(f.identity, strings.NewReader(metrics), "stack_controller_spiffe_identity")).To(Succeed())
}

func TestWithoutIdentityTheControllerSaysWhatItWaitsForAndThenWorks(t *testing.T) {
	for name, tt := range map[string]struct {
		lacking func(*workloadapi.API)
		state   state
		message string
		back    func(*workloadapi.API) error
	}{
		"refused":   {(*workloadapi.API).Refuse, refused, "an entry for its ServiceAccount is missing", nil},
		"no socket": {(*workloadapi.API).Stop, unreachable, "the SPIFFE Workload API does not answer", (*workloadapi.API).Serve},
		"silent":    {(*workloadapi.API).FallSilent, unreachable, "the SPIFFE Workload API does not answer", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tt.lacking(f.api)
			f.start(t, 300*time.Millisecond)
			f.Eventually(f.logged).Should(ContainSubstring("waiting for a SPIFFE identity"))
			f.Expect(f.ready()).To(MatchError(ErrNoIdentity))
			f.Expect(f.ready()).To(MatchError(ContainSubstring(tt.message)))
			f.expectState(tt.state)
			_, err := f.identity.GetX509SVID()
			f.Expect(err).To(MatchError(ErrNoIdentity))

			if tt.back != nil {
				f.Expect(tt.back(f.api)).To(Succeed())
			}
			issued := f.issue(self, time.Hour)
			f.Eventually(f.ready).Should(Succeed())
			f.Expect(f.identity.GetX509SVID()).To(HaveField("ID", issued.ID))
			f.expectState(valid)
		})
	}
}

func TestASilentWorkloadAPIIsAskedAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.api.FallSilent()
	f.start(t, 200*time.Millisecond)
	f.Eventually(f.api.Calls).Should(BeNumerically(">", 1))
}

func TestIdentityIsUsedUntilItExpiresWithAWarningBefore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued := f.issue(self, 15*time.Second) // a quarter is long enough to look at it, also on a busy machine
	f.start(t, 500*time.Millisecond)
	f.Eventually(f.ready).Should(Succeed())
	f.Expect(testutil.CollectAndCount(f.identity)).To(Equal(1 + len(states)))
	f.api.Stop()

	f.Eventually(f.logged).Should(ContainSubstring("the identity is still valid"))
	f.Eventually(f.logged).Should(ContainSubstring("not renewed and will expire"))
	f.Expect(f.ready()).To(Succeed())
	f.expectState(expiring)
	f.Expect(f.identity.GetX509SVID()).To(HaveField("ID", issued.ID))

	f.Eventually(f.ready).Should(MatchError(And(MatchRegexp(`it expired at 20\S+Z`), ContainSubstring("has not renewed it"))))
	f.Eventually(f.logged).Should(ContainSubstring("has expired and is not renewed"))
	f.expectState(expired)

	f.Expect(f.api.Serve()).To(Succeed())
	f.issue(self, time.Hour)
	f.Eventually(f.ready).Should(Succeed())
	f.expectState(valid)
}

func TestRenewalReplacesTheIdentity(t *testing.T) {
	t.Parallel()
	f := running(t)
	renewed := f.issue("/renamed", 2*time.Hour)
	f.Eventually(f.identity.GetX509SVID).Should(HaveField("ID", renewed.ID))
}

func TestIdentityThatIsSentAgainIsNoNews(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued := f.issue(self, time.Hour)
	f.start(t, 0)
	f.Eventually(f.ready).Should(Succeed())
	for range 10 {
		sent := f.api.Sent()
		f.Expect(f.api.Send(issued, f.authority.Bundle())).To(Succeed())
		f.Eventually(f.api.Sent).Should(BeNumerically(">", sent))
	}
	f.issue("/renamed", time.Hour)
	f.Eventually(f.logged).Should(ContainSubstring("/renamed"))
	f.Expect(strings.Count(f.logged(), "received a SPIFFE identity")).To(Equal(2))
}

func TestIdentityWithoutTheCertificatesOfItsTrustDomainIsOfNoUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued, err := f.authority.Issue(self, time.Hour)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(f.api.Send(issued, x509bundle.New(issued.ID.TrustDomain()))).To(Succeed())
	f.start(t, 0)
	f.Eventually(f.logged).Should(ContainSubstring("without the certificates of its trust domain"))
	f.Expect(f.ready()).To(MatchError(ContainSubstring("is of no use")))
	f.expectState(failing)
	f.issue(self, time.Hour)
	f.Eventually(f.ready).Should(Succeed())
}

func TestRemovedEntryIsTheReasonWhyAnIdentityExpired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.issue(self, 5*time.Second)
	f.start(t, 0)
	f.Eventually(f.ready).Should(Succeed())
	f.api.Refuse()
	f.Eventually(f.ready).Should(MatchError(ContainSubstring("its entry was removed")))
}

func TestAddressOfTheWorkloadAPIIsChecked(t *testing.T) {
	g := NewWithT(t)
	for address, problem := range map[string]string{
		"": "SPIFFE_ENDPOINT_SOCKET", "/run/api.sock": "must have a \"tcp\" or \"unix\" scheme", "http://host/": "SPIFFE_ENDPOINT_SOCKET",
		"tcp://host": "SPIFFE_ENDPOINT_SOCKET",
	} {
		t.Setenv("SPIFFE_ENDPOINT_SOCKET", address)
		_, err := WorkloadAPIAddress()
		g.Expect(err).To(MatchError(ContainSubstring(problem)), address)
	}
	for _, address := range []string{"unix:///run/api.sock", "tcp://127.0.0.1:8080"} {
		t.Setenv("SPIFFE_ENDPOINT_SOCKET", address)
		g.Expect(WorkloadAPIAddress()).To(Equal(address))
	}
}
