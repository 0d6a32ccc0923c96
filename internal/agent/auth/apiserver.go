package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// maxResponse bounds an answer of the API server, maxFile a file of a volume, in bytes.
	maxResponse, maxFile = 1 << 20, 1 << 20
	// idleTimeout is when idle connections to the API server are closed: the two reviews of a decision share a connection, but the next review
	// is minutes away.
	idleTimeout = 10 * time.Second
	// requestTimeout bounds one request.
	requestTimeout = 5 * time.Second
	// maxQuote bounds text from elsewhere that a message quotes, in bytes.
	maxQuote = 300
)

// apiServer makes requests to the API server. It uses little more than net/http, because an idle agent must stay small: with the clients of
// client-go and the types of k8s.io/api, the program has 40 MB instead of 17, and 30 MB of memory after its start instead of 14. The caches
// of reviews in k8s.io/apiserver need those clients as well, and more.
type apiServer struct {
	url, tokenFile, caFile string

	mu     sync.Mutex
	ca     []byte
	client *http.Client
}

// forbiddenError is the API server's response that the agent may not make the request.
type forbiddenError struct {
	message string
}

// Error returns the answer.
func (e *forbiddenError) Error() string {
	return e.message
}

// unauthorizedError means that the API server does not accept the agent's own token.
type unauthorizedError struct{ message string }

// Error says which token it is.
func (e *unauthorizedError) Error() string { return e.message }

// call makes a request, with the JSON of body when it is not nil, and decodes the answer. An answer 403 is a
// *forbiddenError.
func (s *apiServer) call(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := s.do(ctx, method, path, body, answer); err != nil {
		return fmt.Errorf("ask the API server: %s %s: %w", method, path, err)
	}
	return nil
}

func (s *apiServer) do(ctx context.Context, method, path string, body, answer any) error {
	var content []byte
	var err error
	if body != nil {
		if content, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	token, err := file.Read(s.tokenFile, maxFile)
	if err != nil {
		return fmt.Errorf("read the agent's token: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Content-Type", "application/json")
	// The API server serves keys only as the second of these types.
	request.Header.Set("Accept", "application/json, application/jwk-set+json")
	client, err := s.connect()
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if content, err = file.ReadAll(response.Body, maxResponse); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
		return json.Unmarshal(content, answer)
	case http.StatusForbidden:
		// The message names the user and the missing right. Other responses might quote the request, which contains a token.
		var problem struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(content, &problem)
		return &forbiddenError{message: plaintext.Cut(problem.Message, maxQuote)}
	case http.StatusUnauthorized:
		return &unauthorizedError{fmt.Sprintf("%s: the agent's own token in %s is not accepted: was its ServiceAccount deleted and created again?", response.Status, s.tokenFile)}
	}
	return errors.New(response.Status)
}

// connect returns a client that trusts the certificates that are in the file now.
func (s *apiServer) connect() (*http.Client, error) {
	ca, err := file.Read(s.caFile, maxFile)
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
	// The connections of the last client end when they are idle.
	s.ca, s.client = ca, &http.Client{
		// The user controls the environment, so no proxy from it may receive tokens. Neither may the target of a redirect.
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: requestTimeout, MaxIdleConns: 2, IdleConnTimeout: idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s.client, nil
}
