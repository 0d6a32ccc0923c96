// Package objectstore runs a real S3-compatible object store, MinIO, on loopback over plain HTTP.
package objectstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// Region is the one that the store says it is in.
	Region = "us-east-1"
	// AccessKey is the name of the one user.
	AccessKey = "administrator"

	// name is that of the tool, of the server's directory and of its log.
	name = "minio"
)

// Store is an object store.
type Store struct {
	// Address is its host and port, the same after a restart.
	Address string
	// SecretKey is the user's password.
	SecretKey string

	controlPlane *controlplane.ControlPlane
	client       http.Client
	process      *supervise.Process
}

// Start starts an object store without a bucket, which ends with the control plane at the latest.
func Start(ctx context.Context, cp *controlplane.ControlPlane) (*Store, error) {
	address, err := cp.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Store{Address: address, SecretKey: rand.Text(), controlPlane: cp, client: http.Client{Timeout: requestTimeout}}
	return s, s.Resume(ctx)
}

// Resume starts the store again that was stopped.
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

// Stop ends the store; its objects stay.
func (s *Store) Stop() error { return s.process.Stop(0) }
