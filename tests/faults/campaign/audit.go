package campaign

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// deeds are how often something was done to a resource, over all of its versions: by "create start", "update end" and so on.
type deeds map[string]int

// readJournals returns the deeds by resource, and those of single versions by "resource.version".
func (a *App) readJournals() (byResource, byVersion map[string]deeds, err error) {
	byResource, byVersion = map[string]deeds{}, map[string]deeds{}
	files, err := filepath.Glob(filepath.Join(a.dir, "*.journal"))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		version := strings.TrimSuffix(filepath.Base(file), ".journal")
		resource, _, _ := strings.Cut(version, ".")
		if byResource[resource] == nil {
			byResource[resource] = deeds{}
		}
		byVersion[version] = deeds{}
		for line := range strings.Lines(string(content)) {
			byResource[resource][strings.TrimSpace(line)]++
			byVersion[version][strings.TrimSpace(line)]++
		}
	}
	return byResource, byVersion, nil
}

// Counts returns how often anything was begun, and how often anything came to an end, be it a cancelled one.
func (a *App) Counts() (begun, ended int) {
	byResource, _, err := a.readJournals()
	if err != nil {
		return 0, 0
	}
	for _, done := range byResource {
		for line, count := range done {
			if strings.HasSuffix(line, " start") {
				begun += count
			} else {
				ended += count
			}
		}
	}
	return begun, ended
}

// audit tells in what the journals contradict that every intended state was made exactly once.
func (a *App) audit() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	byResource, byVersion, err := a.readJournals()
	if err != nil {
		return err
	}
	var wrong []error
	report := func(is bool, resource, format string, args ...any) {
		if is {
			what := fmt.Sprintf(format, args...)
			wrong = append(wrong, fmt.Errorf("resource %s of %s: %s; its journal: %v", resource, a.Name, what, byResource[resource]))
		}
	}
	wanted := a.resources
	if a.deleted {
		wanted = nil
	}
	for resource := range wanted {
		report(byResource[resource] == nil, resource, "it was lost")
	}
	for resource, done := range byResource {
		version, is := wanted[resource]
		// Who cancels a creation, or forgets one that was cut off, lets it be made again.
		created := done["create start"] - done["create aborted"]
		report(created > 1+a.forgotten, resource, "it was created %d times", created)
		content, err := os.ReadFile(filepath.Join(a.dir, resource))
		report(is != (err == nil), resource, "wanted is %t, there is %t", is, err == nil)
		if !is {
			report(done["delete end"] < done["create end"]-a.forgotten, resource,
				"it was created %d times and deleted %d times", done["create end"], done["delete end"])
			report(done["delete end"] > 1+a.kills, resource, "it was deleted %d times", done["delete end"])
			continue
		}
		report(done["delete end"] > 0, resource, "it was deleted")
		report(string(content) != strconv.Itoa(version), resource, "it is at version %q instead of %d", content, version)
		last := byVersion[fmt.Sprintf("%s.%d", resource, version)]
		made := last["create end"] + last["update end"]
		report(made < 1 || made > 1+a.kills+a.forgotten, resource, "version %d was made %d times, with %d kills", version, made, a.kills)
	}
	return errors.Join(wrong...)
}

// pendingOperations is how many operations on resources pulumi began and does not know the end of.
func (a *App) pendingOperations() (int, error) {
	backend := strings.TrimPrefix(a.world.BackendURL, "file://")
	content, err := os.ReadFile(filepath.Join(backend, ".pulumi", "stacks", a.Name, "dev.json"))
	if err != nil {
		return 0, err
	}
	var state struct {
		Checkpoint struct {
			Latest struct {
				Pending []json.RawMessage `json:"pending_operations"`
			} `json:"latest"`
		} `json:"checkpoint"`
	}
	err = json.Unmarshal(content, &state)
	return len(state.Checkpoint.Latest.Pending), err
}

// removeFiles removes what a creation that was cut off may have left.
func (a *App) removeFiles() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten++
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".journal" {
			continue
		}
		if err := os.Remove(filepath.Join(a.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
