package program

import (
	"regexp"
	"strings"
)

// The language, as far as every version of its host agrees on it. What is left to the host, which is in the image of the
// workspace and may be of any version: types of properties, names that are not defined, arguments of functions.
var (
	anything   = &shape{literal: true}
	expression = &shape{}

	text    = &shape{want: "a string", accepts: isText}
	name    = &shape{want: "a string that is not empty", accepts: isNonEmpty}
	boolean = &shape{want: "true or false", accepts: isBoolean}
	texts   = &shape{want: "a list of strings", accepts: isList, items: text}

	// expressions are an object whose values are expressions; unlike an expression it cannot be a call of a function.
	expressions = &shape{want: "an object", accepts: isObject, values: expression}

	literalText = &shape{want: "a string", accepts: isText, literal: true}
	literalName = &shape{want: "a string that is not empty", accepts: isNonEmpty, literal: true}
)

// programShape is a Pulumi.yaml without name and runtime.
var programShape = &shape{
	fields: map[string]*shape{
		"description":           text,
		"author":                literalText,
		"website":               literalText,
		"license":               literalText,
		"requiredPulumiVersion": literalText,
		"pulumi":                settings,
		"configuration":         {want: "an object", accepts: isObject, values: configuration},
		"config":                {want: "an object", accepts: isObject, values: config},
		"variables":             expressions,
		"resources":             resources,
		"outputs":               expressions,
		"packages":              {want: "an object", accepts: isObject, values: packageSource, literal: true},
		"components":            {want: "an object", accepts: isObject, values: component},
		"plugins":               plugins,
	},
	hints: map[string]string{
		"name":           "the name of the project is that of the Program",
		"runtime":        "the runtime of a Program is yaml",
		"main":           "a Program has one file",
		"backend":        "the Stack says in spec.backend where its state is",
		"options":        "the Stack says in spec.refresh whether its state is refreshed first",
		"stackConfigDir": "the Stack says in spec.config how it is configured",
		"template":       "it is for pulumi new",
		"sdks":           "a Program has one file; use packages",
		"namespace":      "a Program cannot be used as a package",
	},
	also: checkNames,
}

var settings = &shape{want: "an object", accepts: isObject, fields: map[string]*shape{"requiredVersion": text}}

var configuration = &shape{
	want: "an object with type or default", accepts: isObject,
	fields: map[string]*shape{
		"type": configType, "name": text, "default": expression, "value": expression, "items": items, "secret": boolean,
	},
	also: func(c *checker, path string, value any) {
		object := value.(map[string]any)
		if _, typed := object["type"]; !typed && object["default"] == nil {
			c.report(path, "needs a type or a default value")
		}
	},
}

// config is an entry of the block of that name, which pulumi itself reads before the language does.
var config = &shape{
	want:    "a string, an integer, a boolean, a list, or an object with type, default or value",
	accepts: anyOf(isText, isInteger, isBoolean, isList, isObject),
	fields: map[string]*shape{
		"type": projectType, "description": text, "default": expression, "value": expression, "items": items, "secret": boolean,
	},
	hints: map[string]string{"name": "only configuration has it"},
	also: func(c *checker, path string, value any) {
		object, _ := value.(map[string]any)
		if object["default"] != nil && object["value"] != nil {
			c.report(path, "cannot have both a default and a value")
		}
	},
}

var (
	configTypePattern = regexp.MustCompile(`^(?i)(array|` + primitive + `|list< *` + primitive + ` *>)$`)
	configType        = &shape{
		want:    "String, Number, Integer, Boolean or Object, or List<…> of one of these",
		accepts: func(value any) bool { text, ok := value.(string); return ok && configTypePattern.MatchString(text) },
	}
	projectType = &shape{
		want: "string, integer, boolean, array or object",
		accepts: func(value any) bool {
			switch value {
			case "string", "integer", "boolean", "array", "object":
				return true
			}
			return false
		},
	}
	items = &shape{want: "an object with a type", accepts: isObject, required: []string{"type"}}
)

const primitive = `(string|number|int|integer|bool|boolean|object)`

var resources = &shape{want: "an object", accepts: isObject, values: &shape{
	want: "an object with a type", accepts: isObject, required: []string{"type"},
	fields: map[string]*shape{
		"type": name, "name": text, "defaultProvider": boolean, "properties": properties, "options": options, "get": getter,
	},
	also: checkResource,
}}

var properties = &shape{want: "an object, or an expression in a string", accepts: anyOf(isObject, isText)}

var options = &shape{
	want: "an object", accepts: isObject,
	fields: map[string]*shape{
		"additionalSecretOutputs": texts,
		"aliases":                 aliases,
		"customTimeouts": {
			want: "an object", accepts: isObject, fields: map[string]*shape{"create": text, "update": text, "delete": text},
		},
		"deleteBeforeReplace": boolean,
		"deletedWith":         expression,
		"dependsOn":           expression,
		"envVarMappings":      expression,
		"hideDiffs":           texts,
		"ignoreChanges":       texts,
		"import":              text,
		"parent":              expression,
		"pluginDownloadURL":   text,
		"protect":             {want: "true, false, or an expression", accepts: anyOf(isBoolean, isText, isObject)},
		"provider":            expression,
		"providers":           expression,
		"replaceOnChanges":    texts,
		"replaceWith":         expression,
		"replacementTrigger":  expression,
		"retainOnDelete":      boolean,
		"version":             text,
	},
	hints: map[string]string{"hooks": "Pulumi YAML has no hooks"},
}

var aliases = &shape{
	want: "a list of URNs or objects", accepts: anyOf(isList, isText, isObject),
	items: &shape{
		want: "a URN or an object", accepts: anyOf(isText, isObject),
		also: func(c *checker, path string, value any) {
			object, _ := value.(map[string]any)
			for key := range object {
				if len(object) == 1 && strings.HasPrefix(strings.ToLower(key), "fn::") {
					return // a call of a function
				}
			}
			c.checkObject(path, object, alias, 0)
		},
	},
}

var alias = &shape{fields: map[string]*shape{
	"urn": anything, "name": anything, "type": anything, "parent": anything, "noParent": anything, "stack": anything, "project": anything,
}}

var getter = &shape{
	want: "an object with an id", accepts: isObject, required: []string{"id"},
	fields: map[string]*shape{
		"id":    {want: "a string that is not empty, or an expression", accepts: anyOf(isNonEmpty, isObject)},
		"state": expressions,
	},
}

var component = &shape{
	want: "an object", accepts: isObject,
	fields: map[string]*shape{
		"description": text,
		"pulumi":      settings,
		"inputs":      {want: "an object", accepts: isObject, values: componentInput},
		"variables":   expressions,
		"resources":   resources,
		"outputs":     expressions,
	},
	hints: map[string]string{"name": "the name of a component is its key", "configuration": "a component has inputs"},
	also:  checkNames,
}

var componentInput = &shape{want: "an object with a type", accepts: isObject, required: []string{"type"}, fields: configuration.fields}

var packageSource = &shape{
	want: "a source, or an object with one", accepts: anyOf(isNonEmpty, isObject), literal: true, required: []string{"source"},
	fields: map[string]*shape{
		"source": literalName, "version": literalText, "parameters": literalTexts, "extensions": literalTexts,
		"pluginDownloadURL": literalText, "checksums": {want: "an object of strings", accepts: isObject, values: literalText, literal: true},
	},
}

var literalTexts = &shape{want: "a list of strings", accepts: isList, items: literalText, literal: true}

var plugins = &shape{want: "an object", accepts: isObject, literal: true, fields: map[string]*shape{
	"providers": pluginList, "analyzers": pluginList, "languages": pluginList,
}}

var pluginList = &shape{want: "a list of objects with name and path", accepts: isList, items: &shape{
	want: "an object with name and path", accepts: isObject, required: []string{"name", "path"},
	fields: map[string]*shape{"name": literalText, "path": literalText, "version": literalText},
}}
