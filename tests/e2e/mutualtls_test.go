package e2e_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/framework/workloadapi"
)

const (
	controllerPath = "/ns/stack-controller/sa/stack-controller"
	serverPath     = "/ns/flux-system/sa/source-controller"
)

// front stands before the server of artifacts, and receives events, on a port that speaks plain HTTP or mutual TLS.
type front struct {
	listener net.Listener

	mu     sync.Mutex
	config *tls.Config
	events int
}

func newFront(p *fixture, artifacts string) *front {
	target, err := url.Parse(artifacts)
	p.Succeed(err)
	f := &front{}
	f.listener, err = net.Listen("tcp", "127.0.0.1:0")
	p.Succeed(err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			f.mu.Lock()
			f.events++
			f.mu.Unlock()
			w.WriteHeader(http.StatusAccepted)
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	server.SetKeepAlivesEnabled(false) // each request gets to know what is required at its time
	go func() { _ = server.Serve(f) }()
	p.Cleanup(func() { _ = server.Close() })
	return f
}

// Accept implements net.Listener. The configuration of the time decides how a connection begins.
func (f *front) Accept() (net.Conn, error) {
	connection, err := f.listener.Accept()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config != nil {
		return tls.Server(connection, f.config), nil
	}
	return connection, nil
}

func (f *front) Close() error   { return f.listener.Close() }
func (f *front) Addr() net.Addr { return f.listener.Addr() }

// require makes new connections need mutual TLS, or none with nil.
func (f *front) require(config *tls.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = config
}

func (f *front) received() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.events
}

func TestStackGoesToMutualTLSAndBackWithoutLosingOrRepeatingAnUpdate(t *testing.T) {
	suite.Long(t, "restarts the controller; the tests of internal/spiffe prove each way in which a connection fails")
	p := alone(t, "mutual-tls")
	authority, err := workloadapi.NewAuthority("example.org")
	p.Succeed(err)
	api := workloadapi.Start(t)
	secured, err := authority.ServerConfig(serverPath, controllerPath)
	p.Succeed(err)
	front := newFront(p, artifacts.URL)
	publish := func(value int) string {
		artifact := p.put(p.returning(value))
		artifact.URL = "http://" + front.Addr().String() + artifact.Path
		p.Offer(artifact)
		return artifact.Digest
	}
	says := func(message string) func(*pulumiv1.Stack) bool {
		return func(s *pulumiv1.Stack) bool {
			return notReady(pulumiv1.ArtifactFetchFailedReason)(s) && strings.Contains(statuscheck.Message(s), message)
		}
	}
	p.start(nil)
	first := publish(1)
	p.Await(ready(first))

	// The artifact server needs mutual TLS before the controller has it.
	front.require(secured)
	second := publish(2)
	p.Await(says("a server that requires mutual TLS answers plain HTTP so; --authorized-artifact-server-spiffe-id"))

	// The controller has no identity yet, then a wrong one, then the right one, without a restart.
	system.ControlIn("SPIFFE_ENDPOINT_SOCKET=" + api.Address())
	defer system.ControlIn()
	flags := []string{
		"--authorized-artifact-server-spiffe-id=spiffe://self" + serverPath, "--authorized-event-server-spiffe-id=spiffe://self/ns/flux-system/",
		fmt.Sprintf("--events-addr=http://%s/", front.Addr()), "--requeue-dependency=2s",
	}
	p.stopController()
	started := make(chan error, 1)
	go func() { started <- system.StartController(p.Context(), flags...) }()
	p.Await(says("this controller has no SPIFFE identity: the SPIFFE Workload API has none for it"))
	p.Consistently(started).WithTimeout(2*time.Second).ShouldNot(Receive(), "the controller is not ready")
	issue := func(path string) {
		identity, err := authority.Issue(path, time.Hour)
		p.Succeed(err)
		p.Succeed(api.Send(identity, authority.Bundle()))
	}
	issue("/ns/other/sa/other")
	p.Eventually(started).Should(Receive(BeNil()))
	p.Await(says("does not accept spiffe://example.org/ns/other/sa/other"))
	issue(controllerPath)
	p.Expect(systemtest.Output(p.Await(ready(second)), "x")).To(Equal("2"))
	p.Eventually(front.received).Should(BeNumerically(">", 0), "events are sent over mutual TLS, too")

	// Artifacts are no longer protected, and then the controller no longer asks for it.
	front.require(nil)
	third := publish(3)
	p.Await(says("the artifact server does not speak TLS, which --authorized-artifact-server-spiffe-id of this controller requires"))
	system.ControlIn()
	p.restartController()
	p.Expect(systemtest.Output(p.Await(ready(third)), "x")).To(Equal("3"))

	p.Expect(p.runs("up")).To(Equal(3), "one for each revision")
	p.Expect(p.Updates()).To(HaveLen(3))
}
