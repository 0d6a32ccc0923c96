// Command fakeagent is the tool of an attacking tenant: an agent that violates the protocol, a client that calls the agents of others, and
// a web server. It replaces /share/agent in the pod of a workspace, or runs in its own pod.
package main

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is wrapped
	"google.golang.org/grpc/mem"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: fakeagent serve|call|web")
	}
	switch args[0] {
	case "serve": // the command line of the real agent
		return serve(ctx, optionsOf(args[1:]))
	case "call": // ADDRESS TOKEN-FILE
		return callAgent(ctx, args[1:])
	case "web": // ADDRESS
		return serveWeb(ctx, args[1:])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// optionsOf reads arguments of the form --name=value. Other arguments have no effect.
func optionsOf(args []string) map[string]string {
	options := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		options[name] = value
	}
	return options
}

// modeVariable is the mode in which the agent misbehaves; see the methods of agent.
const modeVariable = "FAKE_MODE"

// serve answers as an agent until the context ends.
func serve(ctx context.Context, options map[string]string) error {
	pair, err := tls.LoadX509KeyPair(options["tls-cert-file"], options["tls-key-file"])
	if err != nil {
		return fmt.Errorf("read the key pair: %w", err)
	}
	listener, err := net.Listen("tcp", options["listen"])
	if err != nil {
		return err
	}
	served := newAgent(os.Getenv(modeVariable), options)
	server := served.server(
		grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})))
	fmt.Println("SERVING", served.mode)
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(listener)
}

// server returns a gRPC server for the agent.
func (a *agent) server(options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options,
		grpc.MaxRecvMsgSize(agentpb.MaxMessageSize), grpc.MaxSendMsgSize(agentpb.MaxMessageSize+1<<20),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.UnaryInterceptor(a.intercept), grpc.StreamInterceptor(a.interceptStream),
	)...)
	agentpb.RegisterAgentServer(server, a)
	return server
}

// raw is an encoded message. It stands for messages that cannot reasonably be built from the types of the protocol.
type raw []byte

// codec sends raw messages unchanged.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	if encoded, ok := message.(raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
	}
	return c.CodecV2.Marshal(message)
}

// canary is a part of the page that the web server serves below /page/.
const canary = "page-canary-55e1"

// serveWeb serves paths that attack a git client or a download.
//
//	/redirect/HOST/…   redirects to http://HOST/…
//	/tarpit/…          sends one byte per second
//	/page/…            answers 500 with a page
//	/references/…      advertises an endless list of references
//	/packs/…           answers a request for a commit with an endless packfile, a thousandth of the size of its files
func serveWeb(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: fakeagent web ADDRESS")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/redirect/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+strings.TrimPrefix(r.URL.Path, "/redirect/")+"?"+r.URL.RawQuery, http.StatusFound)
	})
	mux.HandleFunc("/tarpit/", tarpit)
	mux.HandleFunc("/page/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, canary+strings.Repeat(" page", 1<<16), http.StatusInternalServerError)
	})
	mux.HandleFunc("/references/", references)
	mux.HandleFunc("/packs/", packs)
	server := &http.Server{Addr: args[0], Handler: recorded(mux), ReadHeaderTimeout: callTime}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Println("SERVING web")
	return server.ListenAndServe()
}

// maxRecorded is the maximum number of paths that are printed.
const maxRecorded = 2000

// recorded prints each path when it is first requested, so that an attack can show that the request was sent.
func recorded(handler http.Handler) http.Handler {
	var mu sync.Mutex
	requested := map[string]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if len(requested) < maxRecorded && !requested[r.URL.Path] {
			requested[r.URL.Path] = true
			fmt.Printf("REQUESTED %.200s\n", r.URL.Path)
		}
		mu.Unlock()
		handler.ServeHTTP(w, r)
	})
}

func tarpit(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	// A git client reads this as the beginning of the longest line.
	const begin = "fff0"
	for i := 0; ; i++ {
		next := "x"
		if i < len(begin) {
			next = begin[i : i+1]
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
			if _, err := w.Write([]byte(next)); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// references advertises references until the client closes the connection.
func references(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
	line := func(text string) []byte { return fmt.Appendf(nil, "%04x%s", len(text)+4, text) }
	_, _ = w.Write(append(line("# service=git-upload-pack\n"), "0000"...))
	hash := strings.Repeat("a", 40)
	_, _ = w.Write(line(hash + " HEAD\x00multi_ack side-band-64k ofs-delta allow-tip-sha1-in-want\n"))
	for i := 0; r.Context().Err() == nil; i += 1000 {
		var block bytes.Buffer
		for j := range 1000 {
			block.Write(line(fmt.Sprintf("%s refs/heads/%s-%09d\n", hash, strings.Repeat("b", 200), i+j)))
		}
		if _, err := w.Write(block.Bytes()); err != nil {
			return
		}
	}
}

// packs serves a repository with a branch, and sends a packfile with as many blobs of 1 MiB as the client reads. A blob of zeros takes a
// kilobyte in the packfile.
func packs(w http.ResponseWriter, r *http.Request) {
	line := func(text string) { fmt.Fprintf(w, "%04x%s", len(text)+4, text) }
	if r.Method == http.MethodGet {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		line("# service=git-upload-pack\n")
		_, _ = io.WriteString(w, "0000")
		line(strings.Repeat("a", 40) + " refs/heads/main\x00shallow side-band-64k ofs-delta\n")
		_, _ = io.WriteString(w, "0000")
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
	_, _ = io.WriteString(w, "0000") // no shallow commits
	line("NAK\n")
	const blobSize = 1 << 20
	// The header of a blob: three bits are the type, and the others the size, first four bits, then seven in each byte.
	blob := bytes.NewBuffer([]byte{3<<4 | 0x80, 0x80, 0x80, blobSize >> 18})
	zip := zlib.NewWriter(blob)
	_, _ = zip.Write(make([]byte, blobSize))
	_ = zip.Close()
	line("\x01PACK\x00\x00\x00\x02\xff\xff\xff\xff")
	block := strings.Repeat(blob.String(), 50)
	for r.Context().Err() == nil {
		for begin := 0; begin < len(block); begin += 60_000 {
			line("\x01" + block[begin:min(begin+60_000, len(block))])
		}
	}
}
