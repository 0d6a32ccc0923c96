package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
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
