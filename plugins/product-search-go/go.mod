module product-search-go

go 1.24

require anabranch-sdk v0.0.0

replace anabranch-sdk => ../sdk-go
