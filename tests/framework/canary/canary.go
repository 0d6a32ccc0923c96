// Package canary searches everything that stack-controller writes for secret values that a test planted.
package canary

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
)

// Find returns the names of all files of the system, and of all objects except Secrets, that contain one of the values, in clear or encoded.
// It skips the directories of the named servers, to which the test gave the values, and always those of etcd, source-controller and the git
// server.
func Find(ctx context.Context, system *localsystem.System, servers []string, values ...string) ([]string, error) {
	servers = append([]string{"etcd", "source-controller", "git"}, servers...)
	var found []string
	err := filepath.WalkDir(system.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && filepath.Dir(path) == system.Dir && slices.Contains(servers, entry.Name()) {
			return fs.SkipDir
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err == nil && contains(content, values) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("search the files: %w", err)
	}
	for _, list := range []client.ObjectList{
		&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &corev1.EventList{}, &corev1.ConfigMapList{},
	} {
		if err := system.Client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
		content, err := json.Marshal(list)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", list, err)
		}
		if contains(content, values) {
			found = append(found, fmt.Sprintf("%T", list))
		}
	}
	return found, nil
}

func contains(content []byte, values []string) bool {
	return slices.ContainsFunc(values, func(value string) bool {
		encoded := base64.StdEncoding.EncodeToString([]byte(value))
		return bytes.Contains(content, []byte(value)) || bytes.Contains(content, []byte(encoded))
	})
}
