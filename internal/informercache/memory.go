package informercache

import (
	"reflect"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const (
	// mapCost is what a map takes without its entries, and entryCost what it records for each entry, in bytes. A map has room for a power
	// of two of entries, and for at least fewEntries.
	mapCost, entryCost, fewEntries = 48, 1, 8
	// tokenCost is what a value takes when it is decoded from JSON, as part of a list or of a map and without its text, in bytes.
	tokenCost = 32
)

var (
	rawJSON = reflect.TypeFor[apiextensionsv1.JSON]()
	// instant is the type of times. A time points to the time zone of the process, which all times share, and which another goroutine may
	// be loading from its file.
	instant = reflect.TypeFor[time.Time]()
)

// memoryOf returns about how much memory a value takes, in bytes, with everything that it points to. It stops counting at the limit. An
// empty item of a list is 3 bytes of JSON for the API server, but may be hundreds of bytes as a value of a Go type.
func memoryOf(value any, limit int) int {
	left := limit
	count(reflect.ValueOf(value), &left)
	return limit - left
}

// count subtracts the memory that the value points to from left, and stops when left is below zero.
func count(value reflect.Value, left *int) {
	if *left < 0 || !value.IsValid() {
		return
	}
	switch value.Kind() {
	case reflect.String:
		*left -= value.Len()
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			*left -= int(value.Elem().Type().Size())
			count(value.Elem(), left)
		}
	case reflect.Struct:
		switch value.Type() {
		case rawJSON:
			*left -= decodedSize(value.Field(0).Bytes())
			return
		case instant:
			return
		}
		// value.Fields() also looks up the name and the tag of each field, which takes three times as long as all the rest.
		for i := range value.NumField() {
			count(value.Field(i), left)
		}
	case reflect.Slice:
		*left -= value.Len() * int(value.Type().Elem().Size())
		if holdsMore(value.Type().Elem()) {
			for i := 0; i < value.Len() && *left >= 0; i++ {
				count(value.Index(i), left)
			}
		}
	case reflect.Map:
		if value.IsNil() {
			return
		}
		entry := entryCost + int(value.Type().Key().Size()+value.Type().Elem().Size())
		*left -= mapCost + roomFor(value.Len())*entry
		for entries := value.MapRange(); entries.Next() && *left >= 0; {
			count(entries.Key(), left)
			count(entries.Value(), left)
		}
	}
}

// roomFor returns how many entries a map with this number of entries has room for. A table of more than fewEntries is never full: one in
// eight is free.
func roomFor(entries int) int {
	if entries == 0 {
		return 0
	}
	room := fewEntries
	for entries > fewEntries && room*7/8 < entries {
		room *= 2
	}
	return room
}

// holdsMore reports whether a value of the type may point to something.
func holdsMore(kind reflect.Type) bool {
	switch kind.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Map, reflect.Array:
		return true
	}
	return false
}

// decodedSize returns the size of JSON as text plus its size when it is decoded, in bytes.
func decodedSize(text []byte) int {
	size := len(text)
	for _, char := range text {
		switch char {
		case '{', '[', ',', ':':
			size += tokenCost
		}
	}
	return size
}
