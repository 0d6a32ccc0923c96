package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// canary is in every page of the web server that is no repository.
const canary = "page-canary-55e1"

// serveWeb serves what a git client or a download may be led to.
//
//	/redirect/HOST/…   redirects to http://HOST/…
//	/tarpit/…          sends a byte per second
//	/page/…            answers 500 with a page
//	/references/…      advertises references without an end
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
	server := &http.Server{Addr: args[0], Handler: mux, ReadHeaderTimeout: callTime}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Println("SERVING web")
	return server.ListenAndServe()
}

func tarpit(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
			if _, err := w.Write([]byte("0")); err != nil {
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
