package httpapi

import _ "embed"

// description is the OpenAPI document of this door. The tests hold the two together.
//
//go:embed openapi.json
var description []byte

// openAPI answers with the description.
func (x *exchange) openAPI() error {
	x.ctx.SetContentType(jsonType)
	x.ctx.SetBody(description)
	return nil
}
