package e2e_test

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
	"github.com/stack-controller/stack-controller/tests/stage"
)

// Secret values that the tests plant. Whatever the tests made stack-controller write must not contain them.
const (
	passphraseCanary = "passphrase-canary-7f3b"
	secretCanary     = "secret-canary-91ac"
)

// findCanaries names every file of the controller and its agents, and every object but Secrets, in which a secret value
// stands, in clear or encoded. The API server's own files, which hold the Secrets, are not looked at.
func findCanaries(ctx context.Context, system *stage.Stage) ([]string, error) {
	var found []string
	err := filepath.WalkDir(system.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && slices.Contains([]string{"etcd", "source-controller", "git"}, entry.Name()) {
			return fs.SkipDir
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err == nil && hasCanary(content) {
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
			return nil, err
		}
		if hasCanary(content) {
			found = append(found, fmt.Sprintf("%T", list))
		}
	}
	return found, nil
}

func hasCanary(content []byte) bool {
	for _, canary := range []string{passphraseCanary, secretCanary} {
		encoded := base64.StdEncoding.EncodeToString([]byte(canary))
		if bytes.Contains(content, []byte(canary)) || bytes.Contains(content, []byte(encoded)) {
			return true
		}
	}
	return false
}
