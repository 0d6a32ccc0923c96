package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// NodeModules returns the directory node_modules with Node.js and the package managers that tests/tools/node pins. The first call installs
// them with the machine's npm, which verifies them against the lock file and runs none of their scripts. progress is as in Path.
func NodeModules(ctx context.Context, progress func(string)) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	files := map[string][]byte{}
	hash := sha256.New()
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc"} {
		content, err := os.ReadFile(filepath.Join(sourceDir(), "node", name))
		if err != nil {
			return "", fmt.Errorf("read the pinned versions of Node.js: %w", err)
		}
		hash.Write(content)
		files[name] = content
	}
	dir := filepath.Join(cache, "tools", hex.EncodeToString(hash.Sum(nil))[:16])
	modules := filepath.Join(dir, "node_modules")
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create the cache of Node.js: %w", err)
	}
	unlock, err := Lock(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(modules); err == nil {
		return modules, nil
	}
	if progress != nil {
		start := time.Now()
		progress("installing Node.js (once for this machine)")
		defer func() { progress(fmt.Sprintf("installed Node.js in %s", time.Since(start).Round(time.Second))) }()
	}
	staging := dir + ".new"
	if err := os.RemoveAll(staging); err != nil {
		return "", fmt.Errorf("remove a broken installation of Node.js: %w", err)
	}
	if err := os.Mkdir(staging, 0o755); err != nil {
		return "", fmt.Errorf("install Node.js: %w", err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(staging, name), content, 0o600); err != nil {
			return "", fmt.Errorf("install Node.js: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = staging
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("install Node.js: %w\n%s", err, output[max(0, len(output)-failureTail):])
	}
	if err := os.Rename(staging, dir); err != nil {
		return "", fmt.Errorf("install Node.js: %w", err)
	}
	return modules, nil
}
