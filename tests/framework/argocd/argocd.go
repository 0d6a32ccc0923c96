// Package argocd runs the scripts of config/argocd as Argo CD does: in the same interpreter, with the same few libraries, and for a second at most.
package argocd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// scriptTimeout is how long Argo CD lets a script run.
const scriptTimeout = time.Second

// Settings are what config/argocd adds to Argo CD's settings.
type Settings map[string]string

// Load reads the settings.
func Load() (Settings, error) {
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "config", "argocd", "argocd-cm.yaml"))
	if err != nil {
		return nil, err
	}
	var patch struct{ Data Settings }
	return patch.Data, yaml.UnmarshalStrict(content, &patch)
}

// Health is the health of an object.
type Health struct{ Status, Message string }

// Action is an entry of the menu of an object.
type Action struct {
	Disabled    bool
	DisplayName string
	IconClass   string
}

// Impact is what an action does.
type Impact struct {
	Operation string
	Resource  map[string]any
}

// Health runs the health check for the object.
func (s Settings) Health(object *unstructured.Unstructured) (health Health, err error) {
	script, found := s["resource.customizations.health."+key(object)]
	if !found {
		return health, fmt.Errorf("no health check for %s", key(object))
	}
	err = run(script, object, &health)
	return health, err
}

// actions are the actions for a kind, in the form of Argo CD.
type actions struct {
	Discovery   string `json:"discovery.lua"`
	Definitions []struct {
		Name   string `json:"name"`
		Script string `json:"action.lua"`
	} `json:"definitions"`
}

func (s Settings) actions(object *unstructured.Unstructured) (found actions, err error) {
	err = yaml.UnmarshalStrict([]byte(s["resource.customizations.actions."+key(object)]), &found)
	return found, err
}

// Actions returns the menu of the object.
func (s Settings) Actions(object *unstructured.Unstructured) (menu map[string]Action, err error) {
	found, err := s.actions(object)
	if err != nil {
		return nil, err
	}
	err = run(found.Discovery, object, &menu)
	return menu, err
}

// Do runs the action on the object.
func (s Settings) Do(name string, object *unstructured.Unstructured) ([]Impact, error) {
	found, err := s.actions(object)
	if err != nil {
		return nil, err
	}
	for _, definition := range found.Definitions {
		if definition.Name != name {
			continue
		}
		var result json.RawMessage
		if err := run(definition.Script, object, &result); err != nil {
			return nil, err
		}
		var impacts []Impact
		if strings.HasPrefix(string(result), "[") {
			return impacts, json.Unmarshal(result, &impacts)
		}
		impacts = []Impact{{Operation: "patch"}}
		return impacts, json.Unmarshal(result, &impacts[0].Resource)
	}
	return nil, fmt.Errorf("no action %q", name)
}

func key(object *unstructured.Unstructured) string {
	return object.GroupVersionKind().Group + "_" + object.GetKind()
}

// run runs the script with the object in the variable obj, and decodes what it returns.
func run(script string, object *unstructured.Unstructured, result any) error {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.OsLibName: openTime} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return fmt.Errorf("open the library %q: %w", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", toLua(state, object.DeepCopy().Object))
	if err := state.DoString(script); err != nil {
		return err
	}
	encoded, err := json.Marshal(fromLua(state.Get(-1)))
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, result)
}

// openTime opens the two functions of the library os that Argo CD leaves.
func openTime(state *lua.LState) int {
	if err := state.CallByParam(lua.P{Fn: state.NewFunction(lua.OpenOs), Protect: true}, lua.LString(lua.OsLibName)); err != nil {
		state.RaiseError("%s", err)
	}
	library := state.GetGlobal(lua.OsLibName).(*lua.LTable)
	left := state.NewTable()
	for _, name := range []string{"time", "date"} {
		left.RawSetString(name, library.RawGetString(name))
	}
	state.SetGlobal(lua.OsLibName, left)
	state.Push(left)
	return 1
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case string:
		return lua.LString(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case []any:
		table := state.NewTable()
		for _, item := range value {
			table.Append(toLua(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for name, item := range value {
			table.RawSetString(name, toLua(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}

// fromLua returns the value as Argo CD decodes it: a table with an element 1, or with nothing, is a list.
func fromLua(value lua.LValue) any {
	switch value := value.(type) {
	case lua.LBool:
		return bool(value)
	case lua.LString:
		return string(value)
	case lua.LNumber:
		return float64(value)
	case *lua.LTable:
		if first, _ := value.Next(lua.LNil); first == lua.LNil || first.Type() == lua.LTNumber {
			list := []any{}
			value.ForEach(func(_, item lua.LValue) { list = append(list, fromLua(item)) })
			return list
		}
		object := map[string]any{}
		value.ForEach(func(name, item lua.LValue) { object[name.String()] = fromLua(item) })
		return object
	default:
		return nil
	}
}
