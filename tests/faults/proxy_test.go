package faults_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
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

// cut closes all connections; while down, new ones are closed at once.
func (l *link) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	for connection := range l.connections {
		_ = connection.Close()
	}
}

// The ways in which artifacts are served.
const (
	servedWell int32 = iota
	servedTruncated
	servedWrong
	servedNotAtAll
)

// mirror stands between source-controller's artifact server and those who download from it.
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
		return nil // the length that was announced stays, and the connection ends early
	}
	response.ContentLength = int64(len(content))
	response.Header.Set("Content-Length", strconv.Itoa(len(content)))
	return nil
}
