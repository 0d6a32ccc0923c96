// Command fakeagent is what a tenant has who attacks: an agent that does not keep to the protocol, a client that calls the agents of
// others, and a web server. It is put in the place of /share/agent in a workspace's pod, or runs in a pod of its own.
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

	"github.com/stack-controller/stack-controller/internal/agent/proto"
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

// optionsOf reads --name=value; all else does not matter.
func optionsOf(args []string) map[string]string {
	options := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		options[name] = value
	}
	return options
}

// modeVariable says how the agent misbehaves; see the methods of agent.
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

// server is a gRPC server of the agent.
func (a *agent) server(options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options,
		grpc.MaxRecvMsgSize(proto.MaxMessageSize), grpc.MaxSendMsgSize(proto.MaxMessageSize+1<<20),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.UnaryInterceptor(a.intercept), grpc.StreamInterceptor(a.interceptStream),
	)...)
	proto.RegisterAgentServer(server, a)
	return server
}

// raw is a message that is encoded already: one that no message of the protocol encodes to within reason.
type raw []byte

// codec sends raw messages as they are.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	if encoded, ok := message.(raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
	}
	return c.CodecV2.Marshal(message)
}

// canary is in every page of the web server that is no repository.
const canary = "page-canary-55e1"

// serveWeb serves what a git client or a download may be led to.
//
//	/redirect/HOST/…   redirects to http://HOST/…
//	/tarpit/…          sends a byte per second
//	/page/…            answers 500 with a page
//	/references/…      advertises references without an end
//	/packs/…           answers a request for a commit with files without an end, a thousandth of their size
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

// maxRecorded is how many paths are printed.
const maxRecorded = 2000

// recorded prints each path the first time it is requested: whoever attacks shows with it that the request was sent.
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
	// To a git client, the beginning of the longest line.
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

// references advertises references until the client has enough.
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

// packs has a branch, and sends a packfile with as many blobs of 1 MiB as the client takes. A blob of zeros is a kilobyte in the packfile.
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
	// The type blob in three bits, and the size: four bits first, then seven at a time.
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
