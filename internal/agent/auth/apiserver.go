package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// maxResponse bounds an answer of the API server, maxFile a file of a volume, in bytes.
	maxResponse, maxFile = 1 << 20, 1 << 20
	// idleTimeout closes connections to the API server: the two reviews of a decision share one, the next is minutes away.
	idleTimeout = 10 * time.Second
	// requestTimeout bounds one request.
	requestTimeout = 5 * time.Second
)

// apiServer makes requests to the API server, with little more than net/http: an agent that idles must stay small.
type apiServer struct {
	url, tokenFile, caFile string

	mu     sync.Mutex
	ca     []byte
	client *http.Client
}

// forbiddenError is the answer that the agent may not do this.
type forbiddenError struct {
	message string
}

// Error returns the answer.
func (e *forbiddenError) Error() string {
	return e.message
}

// call makes a request, with the JSON of body when it is not nil, and decodes the answer. An answer 403 is a
// *forbiddenError.
func (s *apiServer) call(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode a request to the API server: %w", err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("make a request to the API server: %w", err)
	}
	token, err := readFile(s.tokenFile)
	if err != nil {
		return fmt.Errorf("read the agent's token for the API server: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Content-Type", "application/json")
	// The API server serves keys as the second of these and nothing else.
	request.Header.Set("Accept", "application/json, application/jwk-set+json")
	client, err := s.connect()
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	defer response.Body.Close()
	content, err = io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	switch {
	case err != nil:
		return fmt.Errorf("ask the API server: %s %s: read the answer: %w", method, path, err)
	case len(content) > maxResponse:
		return fmt.Errorf("ask the API server: %s %s: the answer is longer than %d bytes", method, path, maxResponse)
	}
	return s.decode(method, path, response, content, answer)
}

func (s *apiServer) decode(method, path string, response *http.Response, content []byte, answer any) error {
	what := fmt.Sprintf("ask the API server: %s %s: %s", method, path, response.Status)
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
		if err := json.Unmarshal(content, answer); err != nil {
			return fmt.Errorf("%s: decode the answer: %w", what, err)
		}
		return nil
	case http.StatusForbidden:
		// The message names the user and what is missing. Other answers might quote the request, which holds a token.
		var problem struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(content, &problem)
		return &forbiddenError{message: bounded(problem.Message)}
	case http.StatusUnauthorized:
		return fmt.Errorf("%s: the agent's own token in %s is not accepted", what, s.tokenFile)
	}
	return errors.New(what)
}

// connect returns the client for the certificates that are in the file now.
func (s *apiServer) connect() (*http.Client, error) {
	ca, err := readFile(s.caFile)
	if err != nil {
		return nil, fmt.Errorf("read the API server's authority: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && bytes.Equal(ca, s.ca) {
		return s.client, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read the API server's authority: %s has no certificate", s.caFile)
	}
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	s.ca, s.client = ca, &http.Client{
		// No proxy of the environment, which is the user's, gets to see tokens; nor whoever a redirect names.
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: requestTimeout, MaxIdleConns: 2, IdleConnTimeout: idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s.client, nil
}

// readFile reads a file that ought to be small.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxFile)
	}
	return content, err
}

// bounded cuts a text that somebody else wrote to a length that suits a message.
func bounded(text string) string {
	const most = 300
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + " …"
	}
	return text
}
