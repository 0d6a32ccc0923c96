// Package ociregistry runs a real OCI registry where the servers of a control plane are (that of crane, over plain HTTP and without a password), and pushes
// artifacts to it in the form that the flux program gives them.
package ociregistry

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// name is that of the tool, of the server's directory and of its log.
const name = "crane"

// Registry is a running registry.
type Registry struct {
	// Address is its host and port.
	Address string

	client http.Client
}

// Start starts a registry, which ends with the control plane at the latest.
func Start(ctx context.Context, cp *controlplane.ControlPlane) (*Registry, error) {
	crane, err := tools.Path(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	address, err := cp.FreeAddress()
	if err != nil {
		return nil, err
	}
	blobs := filepath.Join(cp.Dir, name, "blobs")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the registry: %w", err)
	}
	r := &Registry{Address: address, client: http.Client{Timeout: requestTimeout, Transport: &http.Transport{DialContext: cp.Dial}}}
	_, err = cp.StartServer(ctx, controlplane.Server{
		Name:  name,
		Path:  crane,
		Args:  []string{"registry", "serve", "--address=" + address, "--disk=" + blobs},
		Ready: cp.AnswersOK("http://" + address + "/v2/"),
	})
	return r, err
}

// URL is what an OCIRepository names.
func (r *Registry) URL(repository string) string { return "oci://" + r.Address + "/" + repository }
