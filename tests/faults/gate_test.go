package faults_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The ways in which writes to the API server go.
const (
	writesDone int32 = iota
	// writesRefused answers that somebody else changed the object meanwhile, without asking the API server.
	writesRefused
	// writesUnanswered has the API server do what it is asked, and keeps the answer back.
	writesUnanswered
)

// gate is an HTTP proxy between stack-controller and the API server, which knows requests where link knows connections.
type gate struct {
	*httptest.Server
	mode  atomic.Int32
	every atomic.Int32 // which writes are spoilt: each, each second one and so on
	seen  atomic.Int32 // writes while some are spoilt
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

// certificate is what the gate's clients have to trust.
func (g *gate) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})
}

// spoil begins to spoil writes in a way.
func (g *gate) spoil(mode, every int32) {
	g.every.Store(every)
	g.mode.Store(mode)
}

// spoils tells whether it is the turn of a write to be spoilt.
func (g *gate) spoils() bool {
	if g.seen.Add(1)%g.every.Load() != 0 {
		return false
	}
	g.hits.Add(1)
	return true
}

// writes tells whether the request changes something that is stored.
func writes(request *http.Request) bool {
	return request.Method != http.MethodGet && !strings.Contains(request.URL.Path, "reviews")
}

func updates(request *http.Request) bool {
	return request.Method == http.MethodPut || request.Method == http.MethodPatch
}

// refuse answers as the API server does when the version of the object is not the last one.
func refuse(response http.ResponseWriter) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(http.StatusConflict)
	_ = json.NewEncoder(response).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: "the object has been modified; please apply your changes to the latest version and try again",
	})
}
