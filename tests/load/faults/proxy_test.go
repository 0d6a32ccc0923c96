package faults_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// link is a TCP proxy between stack-controller and the API server, whose connections can be cut.
type link struct {
	listener net.Listener
	target   func() string

	mu          sync.Mutex
	down        bool
	connections map[net.Conn]struct{}
}

func newLink(target func() string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, target: target, connections: map[net.Conn]struct{}{}}
	go l.serve()
	return l, nil
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) serve() {
	for {
		connection, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.forward(connection)
	}
}

func (l *link) forward(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", l.target())
	if err != nil {
		return
	}
	defer far.Close()
	if !l.add(near, far) {
		return
	}
	defer l.remove(near, far)
	go func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
}

func (l *link) add(connections ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, connection := range connections {
		l.connections[connection] = struct{}{}
	}
	return !l.down
}

func (l *link) remove(connections ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, connection := range connections {
		delete(l.connections, connection)
	}
}

// cut closes all connections. While down is true, new connections are closed at once.
func (l *link) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	for connection := range l.connections {
		_ = connection.Close()
	}
}

// The modes in which artifacts are served.
const (
	servedWell int32 = iota
	servedTruncated
	servedWrong
	servedNotAtAll
)

// mirror is a proxy between source-controller's artifact server and its clients.
type mirror struct {
	*httptest.Server
	mode atomic.Int32
	hits atomic.Int32 // downloads that were spoilt
}

func newMirror(origin func() string) *mirror {
	m := &mirror{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(&url.URL{Scheme: "http", Host: origin()})
		},
		ModifyResponse: m.spoil,
		ErrorHandler: func(response http.ResponseWriter, _ *http.Request, _ error) {
			response.WriteHeader(http.StatusBadGateway)
		},
	}
	m.Server = httptest.NewServer(proxy)
	return m
}

func (m *mirror) spoil(response *http.Response) error {
	mode := m.mode.Load()
	if mode == servedWell || response.StatusCode != http.StatusOK {
		return nil
	}
	m.hits.Add(1)
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	switch mode {
	case servedTruncated:
		content = content[:len(content)/2]
	case servedWrong:
		content[len(content)/2] ^= 0xff
	case servedNotAtAll:
		response.StatusCode, content = http.StatusServiceUnavailable, nil
	}
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(content))
	if mode == servedTruncated {
		return nil // the announced length stays, and the connection ends early
	}
	response.ContentLength = int64(len(content))
	response.Header.Set("Content-Length", strconv.Itoa(len(content)))
	return nil
}

// The modes in which writes to the API server are handled.
const (
	writesDone int32 = iota
	// writesRefused rejects updates as conflicts, without asking the API server.
	writesRefused
	// writesUnanswered forwards writes to the API server, and drops the response.
	writesUnanswered
)

// gate is an HTTP proxy between stack-controller and the API server. It can handle single requests, while link handles connections.
type gate struct {
	*httptest.Server
	mode  atomic.Int32
	every atomic.Int32 // which writes are spoilt: 1 is each, 2 is each second one, and so on
	seen  atomic.Int32 // writes since some are spoilt
	hits  atomic.Int32 // writes that were spoilt
}

func newGate(to *rest.Config) (*gate, error) {
	target, err := url.Parse(to.Host)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(to.CAData)
	g := &gate{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(request *httputil.ProxyRequest) { request.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		FlushInterval: -1, // watches
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		switch mode := g.mode.Load(); {
		case mode == writesRefused && updates(request) && g.spoils():
			refuse(response)
		case mode == writesUnanswered && writes(request) && g.spoils():
			proxy.ServeHTTP(httptest.NewRecorder(), request)
			panic(http.ErrAbortHandler)
		default:
			proxy.ServeHTTP(response, request)
		}
	}))
	g.EnableHTTP2 = true
	g.StartTLS()
	return g, nil
}

// certificate returns the certificate that clients of the gate have to trust.
func (g *gate) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})
}

// spoil sets the mode, and which writes are spoilt.
func (g *gate) spoil(mode, every int32) {
	g.every.Store(every)
	g.mode.Store(mode)
}

// spoils reports whether the current write is to be spoilt.
func (g *gate) spoils() bool {
	if g.seen.Add(1)%g.every.Load() != 0 {
		return false
	}
	g.hits.Add(1)
	return true
}

// writes reports whether the request changes a stored object.
func writes(request *http.Request) bool {
	return request.Method != http.MethodGet && !strings.Contains(request.URL.Path, "reviews")
}

func updates(request *http.Request) bool {
	return request.Method == http.MethodPut || request.Method == http.MethodPatch
}

// refuse responds as the API server does to an update of an outdated version.
func refuse(response http.ResponseWriter) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(http.StatusConflict)
	_ = json.NewEncoder(response).Encode(metav1.Status{
		APIVersion: "v1", Kind: "Status",
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: "the object has been modified; please apply your changes to the latest version and try again",
	})
}
