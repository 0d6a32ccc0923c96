// Package objectstore runs a real S3-compatible object store, MinIO, on loopback over plain HTTP.
package objectstore

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// Region is the region of the store.
	Region = "us-east-1"
	// AccessKey is the name of the only user.
	AccessKey = "administrator"

	// name is the name of the tool, of the server's directory and of its log.
	name = "minio"
)

// Store is an object store.
type Store struct {
	// Address is the host and port. They stay the same after a restart.
	Address string
	// SecretKey is the user's password.
	SecretKey string

	controlPlane *controlplane.ControlPlane
	client       http.Client
	process      *supervise.Process
}

// Start starts an object store without a bucket. The store ends at the latest with the control plane.
func Start(ctx context.Context, cp *controlplane.ControlPlane) (*Store, error) {
	address, err := cp.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Store{Address: address, SecretKey: rand.Text(), controlPlane: cp, client: http.Client{Timeout: requestTimeout}}
	return s, s.Resume(ctx)
}

// Resume starts the store again after Stop.
func (s *Store) Resume(ctx context.Context) error {
	minio, err := tools.Path(ctx, name, nil)
	if err != nil {
		return err
	}
	objects := filepath.Join(s.controlPlane.Dir, name, "objects")
	if err := os.MkdirAll(objects, 0o700); err != nil {
		return fmt.Errorf("create the directory of the object store: %w", err)
	}
	s.process, err = s.controlPlane.StartServer(ctx, controlplane.Server{
		Name: name,
		Path: minio,
		Args: []string{"server", "--quiet", "--address=" + s.Address, objects},
		Env: []string{
			"MINIO_ROOT_USER=" + AccessKey, "MINIO_ROOT_PASSWORD=" + s.SecretKey, "MINIO_BROWSER=off", "MINIO_UPDATE=off",
		},
		Ready: s.controlPlane.AnswersOK("http://" + s.Address + "/minio/health/ready"),
	})
	return err
}

// Stop stops the store. Its objects are kept.
func (s *Store) Stop() error { return s.process.Stop(0) }

const (
	// requestTimeout bounds one request.
	requestTimeout = 30 * time.Second
	// maxAnswer bounds how much of a refusal an error shows, in bytes.
	maxAnswer = 512
	// dayFormat and timeFormat are the formats of the time in a signature.
	dayFormat  = "20060102"
	timeFormat = "20060102T150405Z"
)

// CreateBucket creates a bucket.
func (s *Store) CreateBucket(ctx context.Context, bucket string) error {
	return s.send(ctx, http.MethodPut, "/"+bucket, nil)
}

// Put stores an object, and replaces an object of the same name.
func (s *Store) Put(ctx context.Context, bucket, object string, content []byte) error {
	return s.send(ctx, http.MethodPut, "/"+bucket+"/"+object, content)
}

// Remove deletes an object.
func (s *Store) Remove(ctx context.Context, bucket, object string) error {
	return s.send(ctx, http.MethodDelete, "/"+bucket+"/"+object, nil)
}

func (s *Store) send(ctx context.Context, method, path string, content []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+s.Address+path, bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("ask the object store: %w", err)
	}
	s.sign(request, content, time.Now().UTC())
	response, err := s.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the object store: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices {
		answer, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		return fmt.Errorf("ask the object store: %s %s: %s: %s", method, path, response.Status, answer)
	}
	return nil
}

// sign signs a request with version 4 of the signature scheme. The request has no query, and its path needs no escapes.
func (s *Store) sign(request *http.Request, content []byte, now time.Time) {
	payload := hexSum(content)
	request.Header.Set("X-Amz-Date", now.Format(timeFormat))
	request.Header.Set("X-Amz-Content-Sha256", payload)
	const signed = "host;x-amz-content-sha256;x-amz-date"
	canonical := strings.Join([]string{
		request.Method, request.URL.Path, "",
		"host:" + request.URL.Host, "x-amz-content-sha256:" + payload, "x-amz-date:" + now.Format(timeFormat), "",
		signed, payload,
	}, "\n")
	scope := now.Format(dayFormat) + "/" + Region + "/s3/aws4_request"
	key := []byte("AWS4" + s.SecretKey)
	for part := range strings.SplitSeq(scope, "/") {
		key = keyedSum(key, part)
	}
	signature := keyedSum(key, strings.Join([]string{"AWS4-HMAC-SHA256", now.Format(timeFormat), scope, hexSum([]byte(canonical))}, "\n"))
	request.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x", AccessKey, scope, signed, signature))
}

func hexSum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func keyedSum(key []byte, text string) []byte {
	sum := hmac.New(sha256.New, key)
	_, _ = sum.Write([]byte(text)) // it never fails
	return sum.Sum(nil)
}
